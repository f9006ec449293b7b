// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// ErrNoSubnet means that no subnet is suitable for a new ENI, until an operator adds a subnet, a tag or a CIDR. The
// error [aws.ErrSubnetFull] is different: it ends when addresses of a subnet become free.
var ErrNoSubnet = errors.New("no subnet for a new ENI")

// Fit returns the subnets that have all of the tags, and a CIDR of each family. If there is no such subnet, the error
// says what is missing.
func Fit(all []aws.Subnet, vpc, zone string, tags map[string]string, families []lease.Family) ([]aws.Subnet, error) {
	tagged := slices.DeleteFunc(slices.Clone(all), func(n aws.Subnet) bool { return !lease.HasTags(n.Tags, tags) })
	fit := slices.DeleteFunc(slices.Clone(tagged), func(n aws.Subnet) bool { return len(lacks(n, families)) > 0 })
	where := vpc + " in " + zone
	switch {
	case len(fit) > 0:
		return fit, nil
	case len(all) == 0:
		return nil, plugin.Errorf(plugin.CodeTryAgain, "add a subnet for pods to the VPC, in the zone of this instance",
			"%w: %s has no subnet", ErrNoSubnet, where)
	case len(tagged) == 0:
		return nil, plugin.Errorf(plugin.CodeTryAgain,
			"add these tags to a subnet of this zone, or correct subnetTags or --subnet_filter; "+
				"'cni-ipvlan-vpc-k8s-tool subnets' lists the subnets and their tags",
			"%w: no subnet of %s has the tags %s: %s", ErrNoSubnet, where, book.TagText(tags), nearestText(all, tags))
	}
	return nil, plugin.Errorf(plugin.CodeTryAgain, "add a CIDR of this family to the subnet, or correct ipFamilies",
		"%w: %s, in %s, has no CIDR of %v", ErrNoSubnet, tagged[0].ID, where, lacks(tagged[0], families)[0])
}

// attachableSubnets returns the candidates whose ENIs can be attached to this instance. ENIs of an Outpost's subnet are
// only for instances of that Outpost, although the subnet is in a zone of the region. The boot ENI's subnet shows the
// instance's Outpost. If this subnet is no candidate, attachableSubnets returns all candidates.
func attachableSubnets(s *registry.State, candidates []aws.Subnet) []aws.Subnet {
	for _, e := range s.ENIs {
		own := slices.IndexFunc(candidates, func(n aws.Subnet) bool { return e.IsBoot() && n.ID == e.Subnet })
		if own >= 0 {
			return slices.DeleteFunc(slices.Clone(candidates), func(n aws.Subnet) bool {
				return n.Outpost != candidates[own].Outpost
			})
		}
	}
	return candidates
}

// lacks returns those families for which a subnet has no CIDR. If the argument families is empty, lacks checks IPv4.
func lacks(n aws.Subnet, families []lease.Family) []lease.Family {
	if len(families) == 0 {
		families = []lease.Family{lease.IPv4}
	}
	return slices.DeleteFunc(slices.Clone(families), func(f lease.Family) bool {
		return f == lease.IPv4 && n.CIDR.IsValid() || f == lease.IPv6 && n.IPv6CIDR.IsValid()
	})
}

// nearestText describes the subnet whose tags are most like the wanted tags. If no subnet has a wanted key, nearestText
// lists the keys that the subnets have. A tag with a wanted key and another value also counts, but less than a wanted
// tag: the operator may have mistyped the value.
func nearestText(all []aws.Subnet, tags map[string]string) string {
	score := func(n aws.Subnet) (s int) {
		for k, v := range tags {
			have, there := n.Tags[k]
			switch {
			case there && have == v:
				s += len(tags) + 1
			case there:
				s++
			}
		}
		return s
	}
	best := slices.MaxFunc(all, func(a, b aws.Subnet) int { return score(a) - score(b) })
	if score(best) == 0 {
		return "none of the " + fmt.Sprint(len(all)) + " subnets there has one of these tag keys; " + keysText(all)
	}
	var differs []string
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		switch have, there := best.Tags[k]; {
		case !there:
			differs = append(differs, "has no tag "+k)
		case have != tags[k]:
			differs = append(differs, "has "+k+"="+have)
		}
	}
	return best.ID + ", which comes nearest, " + strings.Join(differs, ", and ")
}

// keysText lists the keys of the subnets' tags, but only a few of them.
func keysText(all []aws.Subnet) string {
	const few = 8
	keys := map[string]bool{}
	for _, n := range all {
		for k := range n.Tags {
			keys[k] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(keys))
	switch {
	case len(sorted) == 0:
		return "they have no tags"
	case len(sorted) > few:
		return "their tag keys are " + strings.Join(sorted[:few], ", ") + ", and others"
	}
	return "their tag keys are " + strings.Join(sorted, ", ")
}

// sortSubnets sorts the subnets by the number of ENIs that the instance has there. The subnet with the fewest ENIs
// comes first. For subnets with the same number, weighted rendezvous hashing gives each node an order of its own. Of
// two such subnets, one may have twice as many free addresses: this subnet then comes first on twice as many nodes. So
// a thousand nodes that start together do not all ask for the same subnet.
func sortSubnets(subnets []aws.Subnet, instance string, eniCounts map[string]int) {
	score := func(n aws.Subnet) float64 {
		h := fnv.New64a()
		fmt.Fprint(h, instance, n.ID)
		u := (float64(mixBits(h.Sum64())>>11) + 0.5) / (1 << 53)
		return -float64(n.Free) / math.Log(u)
	}
	slices.SortFunc(subnets, func(a, b aws.Subnet) int {
		return cmp.Or(cmp.Compare(eniCounts[a.ID], eniCounts[b.ID]), cmp.Compare(score(b), score(a)),
			strings.Compare(a.ID, b.ID))
	})
}

// mixBits spreads the low bits of a FNV hash over all bits (the finalizer of splitmix64).
func mixBits(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// SubnetFor returns the subnet with this ID. If the ID is empty, it returns the subnet of the chosen addresses. It
// returns an error if the pool cannot have ENIs in the subnet, or if AWS reserves a chosen address.
func (p *Node) SubnetFor(ctx context.Context, s *registry.State, id string) (aws.Subnet, error) {
	all, err := p.DescribeSubnets(ctx, book.VPCOf(s), s.Instance.Zone)
	if err != nil {
		return aws.Subnet{}, err
	}
	fit, err := p.suitableSubnets(s, all, ENISpec{Subnet: cmp.Or(id, p.Policy.Choice.Subnet), Tags: p.Policy.SubnetTags,
		Families: p.Policy.Families})
	if err != nil {
		return aws.Subnet{}, err
	}
	chosen := p.Policy.Choice.Addrs
	i := slices.IndexFunc(fit, func(n aws.Subnet) bool {
		return !slices.ContainsFunc(chosen, func(a netip.Addr) bool {
			return !n.CIDR.Contains(a) && !n.IPv6CIDR.Contains(a)
		})
	})
	if i < 0 {
		return aws.Subnet{}, plugin.Errorf(plugin.CodeRefused,
			"ask for an address of these subnets, or for the subnet of this address",
			"the pod asks for the address %s, which is in none of the subnets that the pod can use: %s",
			addrText(chosen), subnetText(fit))
	}
	for _, a := range chosen {
		for _, cidr := range []netip.Prefix{fit[i].CIDR, fit[i].IPv6CIDR} {
			if cidr.Contains(a) && book.Reserves(cidr, netip.PrefixFrom(a, a.BitLen())) {
				return aws.Subnet{}, plugin.Errorf(plugin.CodeRefused,
					"AWS reserves the first four addresses of a subnet and the last: ask for another address",
					"the pod asks for the address %s, which AWS reserves in %s (%s)", a, fit[i].ID, cidr)
			}
		}
	}
	return fit[i], nil
}

// chosenSubnetError returns why the pool can have no ENI in the chosen subnet. Without this error, an operator would
// make room on a full instance, and then the creation would fail.
func (p *Node) chosenSubnetError(ctx context.Context, s *registry.State) error {
	if p.Policy.Choice.Subnet == "" {
		return nil
	}
	_, err := p.SubnetFor(ctx, s, "")
	return err
}

// addrText formats a list of addresses, to show it to people.
func addrText(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, " and ")
}

// subnetText formats a list of subnets with their CIDRs, to show it to people.
func subnetText(subnets []aws.Subnet) string {
	var all []string
	for _, n := range subnets {
		text := n.ID
		for _, c := range []netip.Prefix{n.CIDR, n.IPv6CIDR} {
			if c.IsValid() {
				text += " " + c.String()
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// subnetsError returns the error of a node that cannot create an ENI in any subnet. Each subnet is full, or EC2
// attaches no ENI of the subnet to this node.
func subnetsError(s *registry.State, spec ENISpec, full []error, refused map[string]error) error {
	where := fmt.Sprintf("%s in %s", book.VPCOf(s), s.Instance.Zone)
	if len(spec.Tags) > 0 {
		where += " with the tags " + book.TagText(spec.Tags)
	}
	if len(refused) == 0 {
		return plugin.Errorf(plugin.CodeTryAgain, "add another subnet to "+where,
			"%w", errors.Join(append([]error{fmt.Errorf("%w: no subnet of %s has free addresses", aws.ErrSubnetFull,
				where)}, full...)...))
	}
	why := []error{fmt.Errorf("no subnet of %s takes another ENI of this node", where)}
	for _, id := range slices.Sorted(maps.Keys(refused)) {
		why = append(why, refused[id])
	}
	return plugin.Errorf(plugin.CodeTryAgain, cmp.Or(aws.Hint(errors.Join(why...)), "add another subnet to "+where),
		"%w", errors.Join(append(why, full...)...))
}

// secondTrySubnets returns the subnets for a second try to create the ENI. It sets Free of each subnet to 1, so that
// the ENI gets only its primary address. The first try asked for more, and EC2 gives all addresses or none. If the
// first try asked only for the primary address, there is no second try.
func (p *Node) secondTrySubnets(s *registry.State, subnets []aws.Subnet, spec ENISpec) []aws.Subnet {
	if !spec.wantsFamily(lease.IPv4) || p.secondaryAddrs(s, spec) == 0 && !spec.Prefixes {
		return nil
	}
	narrow := slices.DeleteFunc(slices.Clone(subnets), func(n aws.Subnet) bool { return n.Free <= 1 })
	for i := range narrow {
		narrow[i].Free = 1
	}
	return narrow
}

// subnetsInOrder lists the subnets in which this node tries to create an ENI, in the order of the tries. If all
// suitable subnets are full, the list is empty. If no subnet is suitable, subnetsInOrder returns an error.
func (p *Node) subnetsInOrder(ctx context.Context, s *registry.State, spec ENISpec) ([]aws.Subnet, error) {
	all, err := p.ZoneSubnets(ctx, book.VPCOf(s), s.Instance.Zone)
	if err != nil {
		return nil, err
	}
	fit, err := p.suitableSubnets(s, all, spec)
	if err != nil {
		return nil, err
	}
	fit = slices.DeleteFunc(fit, func(n aws.Subnet) bool { return n.CIDR.IsValid() && n.Free == 0 })
	eniCounts := map[string]int{}
	for _, e := range s.ENIs {
		eniCounts[e.Subnet]++
	}
	sortSubnets(fit, s.Instance.ID, eniCounts)
	// An ENI takes a whole slot, even if its subnet has few addresses for it. So subnets with few addresses come last.
	narrow := func(n aws.Subnet) int {
		if spec.wantsFamily(lease.IPv4) && n.Free < s.Instance.IPv4PerENI {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(fit, func(a, b aws.Subnet) int { return narrow(a) - narrow(b) })
	return fit, nil
}

// suitableSubnets returns the subnets of the instance's zone that are allowed for the ENI.
func (p *Node) suitableSubnets(s *registry.State, all []aws.Subnet, spec ENISpec) ([]aws.Subnet, error) {
	all = attachableSubnets(s, all)
	if spec.Subnet == "" {
		return Fit(all, book.VPCOf(s), s.Instance.Zone, spec.Tags, spec.Families)
	}
	i := slices.IndexFunc(all, func(n aws.Subnet) bool { return n.ID == spec.Subnet })
	if i < 0 {
		return nil, plugin.Errorf(plugin.CodeRefused,
			"ask for a subnet of this zone, or let the pod run in the zone of that subnet",
			"the pod asks for the subnet %s, which is not in the VPC and zone of this node (%s in %s). The subnets "+
				"there: %s",
			spec.Subnet,
			book.VPCOf(s), s.Instance.Zone, subnetText(all))
	}
	return Fit(all[i:i+1], book.VPCOf(s), s.Instance.Zone, nil, spec.Families)
}
