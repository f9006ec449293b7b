// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// A launchPlan describes the ENIs that a launch template gives to an instance.
type launchPlan struct {
	lease.Policy
	kind   string // the instance type
	limits aws.Limits
	eni    launchENI // all ENIs for pods are copies of this ENI
	except int       // number of slots that the template leaves empty, for ENIs for which pods ask
}

// planOf makes the plan from the command line and the configuration. It asks EC2 for the limits of the instance type.
// If neither command line nor configuration names a subnet, planOf also asks EC2 for a subnet.
func planOf(c *cli.Context) (launchPlan, error) {
	p := launchPlan{eni: launchENI{Description: "pods", SubnetID: c.String("subnet"), DeleteOnTermination: true}}
	networks, err := conf.Load(c.String("config")).All()
	if err != nil {
		return p, err
	}
	pools, takes := poolsOf(networks)
	if p.Policy, err = poolNamed(c, pools, c.String("pool")); err != nil {
		return p, err
	}
	p.eni.Tracking = launchTracking(p.Policy.Tracking)
	if p.except = c.Int("except-enis"); p.except < 0 {
		return p, cli.Misuse(c, "--except-enis %d: want 0 or more ENIs", p.except)
	}
	if p.eni.Groups = c.StringSlice("group"); len(p.eni.Groups) == 0 {
		p.eni.Groups = p.SecurityGroups
	}
	if len(p.eni.Groups) == 0 {
		return p, cli.Hint(errors.New(
			"a launch template needs a security group, and the configuration has none in secGroupIds"),
			"set the security groups of the ENIs with --group ID, or with secGroupIds in the configuration")
	}
	cloud := aws.New(aws.Options{})
	if p.kind = c.String("instance-type"); p.kind == "" {
		self, err := cloud.Instance(c.Context)
		if err != nil {
			return p, cli.Hint(err, "on a machine that is no EC2 instance, add --instance-type and --subnet")
		}
		p.kind = self.Type
	}
	if p.limits, err = limitsOf(c.Context, cloud, p.kind); err != nil {
		return p, err
	}
	if !c.IsSet("except-enis") && takes && p.maxPodENIs() > 1 {
		p.except = 1
	}
	if err := p.fillENI(c); err != nil {
		return p, err
	}
	if p.eni.SubnetID == "" {
		p.eni.SubnetID, err = p.chooseSubnet(c, cloud)
	}
	return p, err
}

// poolsOf returns a policy for each pool of the networks. requestsENIs reports whether pods may ask for ENIs. Of
// networks with the same name, only the first counts, because a file of Multus may have a copy of a conflist.
func poolsOf(networks []conf.List) (pools []lease.Policy, requestsENIs bool) {
	var all []lease.Policy
	for i, l := range networks {
		if slices.ContainsFunc(networks[:i], func(first conf.List) bool { return first.Name == l.Name }) {
			continue
		}
		own := l.IPAM.Policies()
		all = append(all, own...)
		requestsENIs = requestsENIs || slices.ContainsFunc(l.IPAM.Permissions,
			func(r lease.Permission) bool { return r.TakesENIs(own[0].Provision) })
	}
	for len(all) > 0 {
		other := func(q lease.Policy) bool { return q.Pool != all[0].Pool }
		pools = append(pools, mergePolicies(slices.DeleteFunc(slices.Clone(all), other)))
		all = slices.DeleteFunc(all, func(q lease.Policy) bool { return q.Pool == pools[len(pools)-1].Pool })
	}
	return pools, requestsENIs
}

func poolNamed(c *cli.Context, pools []lease.Policy, name string) (lease.Policy, error) {
	i := slices.IndexFunc(pools, func(q lease.Policy) bool { return conf.PoolName(q.Pool) == name })
	if i < 0 {
		return lease.Policy{}, cli.Misuse(c, "--pool: the configuration has no pool %q", name)
	}
	return pools[i], nil
}

// mergePolicies merges the policies of networks that share a pool. The result has all families of the networks, their
// highest interfaceIndex, and their highest maxENIs. With Multus, one pod may be in several networks, and gets an
// address of each network. So mergePolicies adds up the maxPods of the networks.
func mergePolicies(sharing []lease.Policy) lease.Policy {
	p := sharing[0]
	p.Families = slices.Clone(p.Families)
	limit := func(one, other, both int) int {
		if one == 0 || other == 0 {
			return 0 // no limit
		}
		return both
	}
	for _, q := range sharing[1:] {
		for _, f := range q.Families {
			if !slices.Contains(p.Families, f) {
				p.Families = append(p.Families, f)
			}
		}
		p.MinIndex = max(p.MinIndex, q.MinIndex)
		p.MaxENIs = limit(p.MaxENIs, q.MaxENIs, max(p.MaxENIs, q.MaxENIs))
		p.MaxPods = limit(p.MaxPods, q.MaxPods, p.MaxPods+q.MaxPods)
	}
	return p
}

// fillENI decides how many prefixes or addresses each ENI has, within the limits of the instance type. EC2 counts a
// prefix as one address. It creates an ENI with prefixes or with addresses, but not with both. It delegates prefixes
// only to Nitro types.
func (p *launchPlan) fillENI(c *cli.Context) error {
	room := p.limits.IPv4PerENI - 1
	fits := func(flag string, n int) error {
		if n < 0 || n > room {
			return cli.Misuse(c,
				"--%s %d: want 0 to %[5]d, because an ENI of %[3]s can have %[4]d IPv4 addresses, including its "+
					"primary address",
				flag, n, p.kind, p.limits.IPv4PerENI, room)
		}
		return nil
	}
	switch {
	case c.IsSet("prefixes") && c.IsSet("addresses"):
		return cli.Misuse(c, "--prefixes and --addresses: want only one of these flags, because EC2 creates no ENI "+
			"with both")
	case c.Int("prefixes") > 0 && p.limits.NoPrefixes:
		return cli.Misuse(c, "--prefixes %d: want 0, because %s is no Nitro type, and EC2 delegates no prefixes to "+
			"its ENIs",
			c.Int("prefixes"), p.kind)
	case c.IsSet("prefixes"):
		p.eni.Prefixes = c.Int("prefixes")
	case c.IsSet("addresses"):
		p.eni.Secondary = c.Int("addresses")
	case !slices.Contains(p.Families, lease.IPv4):
	case p.Prefixes && !p.limits.NoPrefixes:
		p.eni.Prefixes = room
	default:
		p.eni.Secondary = room
	}
	if err := errors.Join(fits("prefixes", p.eni.Prefixes), fits("addresses", p.eni.Secondary)); err != nil {
		return err
	}
	wants := slices.Contains(p.Families, lease.IPv6)
	switch none := p.limits.IPv6PerENI == 0; {
	case none && wants:
		return cli.Hint(fmt.Errorf("ipFamilies has IPv6, but %s has no IPv6", p.kind),
			"correct ipFamilies, or take an instance type with IPv6")
	case none && c.Bool("ipv6"):
		return cli.Misuse(c, "--ipv6: %s has no IPv6", p.kind)
	}
	if c.Bool("ipv6") || !c.IsSet("ipv6") && wants {
		p.eni.IPv6Prefixes = 1
		if p.limits.NoPrefixes {
			p.eni.IPv6Prefixes, p.eni.IPv6 = 0, p.limits.IPv6PerENI
		}
	}
	return nil
}

// podsPerENI returns the number of pods that one ENI can serve.
func (p *launchPlan) podsPerENI() int {
	n := 1 << 20 // a /80 has more addresses than a node can have pods
	if p.limits.NoPrefixes && slices.Contains(p.Families, lease.IPv6) {
		n = p.limits.IPv6PerENI
	}
	if !slices.Contains(p.Families, lease.IPv4) {
		return n
	}
	const size = 16 // addresses of a /28
	return min(n, 1+p.eni.Secondary+size*p.eni.Prefixes)
}

// bootPods returns the number of pods that the boot ENI can serve, if the configuration lets it serve pods. The node
// itself uses the primary address and the first IPv6 address.
func (p *launchPlan) bootPods() int {
	n := p.podsPerENI() - 1
	if slices.Contains(p.Families, lease.IPv6) {
		n = min(n, p.limits.IPv6PerENI-1)
	}
	return n
}

// maxPodENIs returns how many ENIs an instance can have for pods.
func (p *launchPlan) maxPodENIs() int {
	if p.MaxENIs > 0 {
		return min(p.limits.PodENIs(), p.MaxENIs-1)
	}
	return p.limits.PodENIs()
}

// eniSlots returns the network card and the device index of each ENI for pods. It fills all cards evenly, because the
// ENIs of a card share the bandwidth of the card.
func (p *launchPlan) eniSlots() ([][2]int, error) {
	var all [][2]int
	for card, n := range p.limits.Cards {
		from, to := max(p.MinIndex, 1), n
		if len(p.limits.Cards) == 1 {
			// If the type has only one card, EC2 accepts any device index. So a high interfaceIndex does not reduce the
			// number of ENIs.
			to = from + n - 1
		}
		for index := from; index < to; index++ {
			all = append(all, [2]int{card, index})
		}
	}
	slices.SortStableFunc(all, func(a, b [2]int) int { return cmp.Compare(a[1], b[1]) })
	if p.MaxENIs > p.limits.ENIs {
		return nil, fmt.Errorf("maxENIs is %d, but %s can have only %d ENIs", p.MaxENIs, p.kind, p.limits.ENIs)
	}
	if len(all) == 0 && p.maxPodENIs() > 0 {
		return nil, fmt.Errorf("interfaceIndex is %d, but no network card of %s has this device index",
			p.MinIndex, p.kind)
	}
	most := min(p.maxPodENIs(), len(all))
	if p.except > 0 && p.except >= most {
		return nil, fmt.Errorf("--except-enis %d: no ENI for pods would be left, because the instance type %s, "+
			"maxENIs and interfaceIndex together allow only %s", p.except, p.kind, cli.Count(most, "ENI"))
	}
	most -= p.except
	if pods := p.MaxPods; pods > 0 {
		if p.MinIndex == 0 {
			pods -= p.bootPods()
		}
		want := max((pods+p.podsPerENI()-1)/p.podsPerENI(), 0)
		if want > most {
			return nil, fmt.Errorf("maxPods is %d, but only %d pods can have addresses of the ENIs that %s, maxENIs "+
				"and --except-enis allow", p.MaxPods, p.MaxPods-pods+most*p.podsPerENI(), p.kind)
		}
		most = want
	}
	return all[:most], nil
}

// eniTags returns the tags of the ENIs, sorted. The boot ENI also gets these tags, because a template has only one set
// of tags for all its ENIs.
func (p *launchPlan) eniTags() []launchTag {
	tags := maps.Clone(p.Tags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[book.TagManaged], tags[book.TagPool] = "false", conf.PoolName(p.Pool)
	var all []launchTag
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		all = append(all, launchTag{k, tags[k]})
	}
	return all
}

// chooseSubnet compares the subnets that have the tags of the pool, in the zone of this instance. It returns the ID of
// the subnet with the most free addresses.
func (p *launchPlan) chooseSubnet(c *cli.Context, cloud *aws.Client) (string, error) {
	fit, _, err := view.PodSubnets(c.Context, cloud, p.Policy)
	if errors.Is(err, more.ErrNoSubnet) {
		return "", err
	}
	if err != nil {
		return "", cli.Hint(err, "on a machine that is no EC2 instance, add --instance-type and --subnet")
	}
	return slices.MaxFunc(fit, func(a, b aws.Subnet) int { return cmp.Compare(a.Free, b.Free) }).ID, nil
}
