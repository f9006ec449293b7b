// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A pod may ask for its interfaces (see package nic), if the key requests allows it. A request
// for a subnet, for security groups or for an ENI becomes a derived pool. It has what all pools
// have: ENIs of its own, growth, release. Pods with the same request share it.

// A Permission allows pods to ask for their interfaces. What it leaves out, it forbids.
//
//codec:describe exported
type Permission struct {
	// Kubernetes namespaces of the pods: names, or the beginning of names and a *
	Namespaces     []string `json:"namespaces"`
	Subnets        []string `json:"subnets"`        // IDs of the subnets to choose from
	SecurityGroups []string `json:"securityGroups"` // IDs of the security groups to choose from
	// tags that an ENI must have, all of them, so that pods may ask for it
	ENIs      map[string]string `json:"enis"`
	IPs       bool              `json:"ips"`       // addresses may be chosen
	Takeover  bool              `json:"takeover"`  // a chosen address may be taken from an instance that has ended
	Exclusive bool              `json:"exclusive"` // pods may ask for whole ENIs
	Max       int               `json:"max"`       // interfaces of a pod at most; 0: 1
}

// TakesENIs reports whether pods with these permissions can need ENIs besides the ENIs of the pools, on a node with
// such a provision.
func (p Permission) TakesENIs(provision Provision) bool {
	made := len(p.Subnets)+len(p.SecurityGroups) > 0 || p.Exclusive
	return provision == ProvisionFull && made || provision != ProvisionNone && len(p.ENIs) > 0
}

// permissions checks the key requests.
func (v *validation) permissions(all []Permission) {
	for i, p := range all {
		v.Within = fmt.Sprintf("requests: %d: ", i+1)
		if v.Namespaces("namespaces", p.Namespaces); len(p.Namespaces) == 0 {
			v.Wrong(`namespaces must be specified: the Kubernetes namespaces whose pods may ask, ["*"] for all`)
		}
		v.IDs("subnets", "subnet", p.Subnets)
		v.IDs("securityGroups", "sg", p.SecurityGroups)
		if p.ENIs != nil && len(p.ENIs) == 0 {
			v.Wrong(`enis: {}: want the tags of the ENIs for which pods may ask: otherwise they could ask for any ` +
				`ENI of the account`)
		}
		if p.Takeover && !p.IPs {
			v.Wrong("takeover: true: it is about addresses that pods choose, and ips is not true")
		}
		if p.Max < 0 {
			v.Wrong("max: %d: want 1 or more, or 0 for 1", p.Max)
		}
	}
	v.Within = ""
}

// A Choice is what a pod has chosen for one of its interfaces. The zero Choice leaves all to the
// policy.
type Choice struct {
	Subnet string       // ID of the subnet of its ENI; empty: any with the tags of the policy
	Addrs  []netip.Addr // its addresses, at most one of each family; those of other families are any
	ENI    string       // ID of its ENI, which an operator or another program has created
	Groups []string     // IDs of the security groups of its ENI; none: those of the policy
	Pod    registry.Pod // who asks

	// Tags are what this ENI must have: all tags of one of the maps.
	Tags []map[string]string

	Exclusive bool // it gets a whole ENI, of which no other pod has an address
	Takeover  bool // its addresses may be taken from ENIs of instances that have ended

	// Together is the number of interfaces that this ADD makes. Max is how many the pod may have by all of its ADDs. 0:
	// it has asked for nothing that needs a permission.
	Together, Max int
}

// Chooses reports whether the pod has chosen anything.
func (c Choice) Chooses() bool {
	return c.Subnet != "" || len(c.Addrs) > 0 || c.ENI != "" || c.Exclusive
}

// turn returns which interfaces of an attachment come first: see [Pool.Each].
func (c Choice) turn() int {
	switch {
	case c.ENI != "":
		return 2
	case len(c.Addrs) > 0:
		return 0
	}
	return 1
}

// Addr returns the address of a family that the pod has chosen, if it has.
func (c Choice) Addr(f Family) (netip.Addr, bool) {
	i := slices.IndexFunc(c.Addrs, func(a netip.Addr) bool { return nl.FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}, false
	}
	return c.Addrs[i], true
}

// Interfaces returns the policy of each interface that an ADD makes, for a pod of a network. A
// pod that asks for nothing has one interface, which its pool serves. Its error names what the
// pod may not ask for, or what is no request.
func (c *Config) Interfaces(network, ifName string, pod plugin.Pod) ([]Policy, error) {
	base, err := c.Choose(pod)
	if err != nil {
		return nil, err
	}
	if c.Asked.Annotated(ifName) && !slices.ContainsFunc(c.Permissions,
		func(p Permission) bool { return p.covers(pod) }) {
		return nil, noPermission(pod) // whatever the annotation says: to parse it may cost the node much
	}
	asked, err := c.Asked.Requests(ifName)
	if err != nil {
		return nil, plugin.Errorf(plugin.CodeRefused,
			"correct the request of the pod: the configuration reference of the plugins describes it",
			"pod %s: %w", pod, err)
	}
	if len(asked) == 0 {
		return []Policy{base}, nil
	}
	granted, err := c.permits(pod, asked)
	if err != nil {
		return nil, err
	}
	if err := base.oneShared(pod, asked); err != nil {
		return nil, err
	}
	var all []Policy
	for _, r := range asked {
		p := base.derive(r, granted.tags)
		p.Choice.Together, p.Choice.Max, p.Choice.Takeover = len(asked), granted.max, granted.takeover
		p.Choice.Pod = registry.Pod{Network: network, Namespace: pod.Namespace, Name: pod.Name}
		if err := p.answers(r); err != nil {
			return nil, plugin.Errorf(plugin.CodeRefused,
				"ask for something else, or change the network configuration of the node", "pod %s: %w", pod, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// A grant is what the permissions that allow a request allow.
type grant struct {
	max      int                 // interfaces of the pod; 0: it asks for nothing
	tags     []map[string]string // of ENIs that the pod may have
	takeover bool                // of its addresses
}

// permits returns what the permissions grant that allow all that a pod asks for. The error is
// about the first permission of its namespace.
func (c *Config) permits(pod plugin.Pod, asked []nic.Request) (all grant, _ error) {
	if !slices.ContainsFunc(asked, nic.Request.Asks) && len(asked) == 1 {
		return grant{}, nil
	}
	var nearest error
	for _, p := range c.Permissions {
		if !p.covers(pod) {
			continue
		}
		if err := p.allows(asked); err != nil {
			nearest = cmp.Or(nearest, err)
			continue
		}
		all.max, all.takeover = max(all.max, p.Max, 1), all.takeover || p.Takeover
		if len(p.ENIs) > 0 { // no tags would mean any ENI
			all.tags = append(all.tags, p.ENIs)
		}
	}
	switch {
	case all.max > 0:
		return all, nil
	case nearest == nil:
		return grant{}, noPermission(pod)
	}
	return grant{}, plugin.Errorf(plugin.CodeRefused, allowHint,
		"pod %s asks for something that requests does not allow for the namespace %s: %w", pod, pod.Namespace, nearest)
}

const allowHint = "an administrator of the node allows it by the key requests of the network configuration"

// noPermission is the error of a pod whose namespace may ask for nothing.
func noPermission(pod plugin.Pod) error {
	return plugin.Errorf(plugin.CodeRefused, allowHint,
		"pod %s asks for its interfaces, and requests does not allow the namespace %q to ask", pod, pod.Namespace)
}

// covers reports whether the permission is for pods of the pod's namespace.
func (p Permission) covers(pod plugin.Pod) bool {
	return slices.Contains(p.Namespaces, "*") || plugin.Namespaces(p.Namespaces).Has(pod.Namespace)
}

// allows returns an error with the first key and value that a permission does not allow.
func (p Permission) allows(asked []nic.Request) error {
	if most := max(p.Max, 1); len(asked) > most {
		return fmt.Errorf("%d interfaces: max is %d", len(asked), most)
	}
	for i, r := range asked {
		if err := p.allowsOne(r); err != nil {
			return fmt.Errorf("interface %d: %w", i+1, err)
		}
	}
	return nil
}

func (p Permission) allowsOne(r nic.Request) error {
	other := func(of []string) func(string) bool { return func(v string) bool { return !slices.Contains(of, v) } }
	group := slices.IndexFunc(r.SecurityGroups, other(p.SecurityGroups))
	switch {
	case r.Subnet != "" && !slices.Contains(p.Subnets, r.Subnet):
		return fmt.Errorf("subnet: %s: allowed are %s", r.Subnet, list(p.Subnets))
	case group >= 0:
		return fmt.Errorf("securityGroups: %s: allowed are %s", r.SecurityGroups[group], list(p.SecurityGroups))
	case len(r.Addrs) > 0 && !p.IPs:
		return fmt.Errorf("ip: %s: ips is not true", r.Addrs[0])
	case r.ENI != "" && len(p.ENIs) == 0:
		return fmt.Errorf("eni: %s: there is no key enis", r.ENI)
	case r.Exclusive && !p.Exclusive:
		return errors.New("exclusive: true: exclusive is not true in requests")
	}
	return nil
}

// list formats what is allowed, for people.
func list(values []string) string { return cmp.Or(strings.Join(values, ", "), "none") }

// derive returns the policy for a request. It begins with the policy of the pod's own pool. Only an operator can keep
// addresses ready for requests: the node does not know future requests.
func (policy Policy) derive(r nic.Request, tags []map[string]string) Policy {
	policy.Choice = Choice{Subnet: r.Subnet, Addrs: r.Addrs, ENI: r.ENI, Exclusive: r.Exclusive}
	if r.Subnet == "" && r.ENI == "" && len(r.SecurityGroups) == 0 && !r.Exclusive {
		return policy
	}
	policy.Warm, policy.Batch = registry.Warm{}, 1
	policy.Pool = derivedName(policy.Pool, r)
	if r.ENI != "" {
		policy.Choice.Tags = tags
		return policy
	}
	if r.Subnet != "" {
		policy.SubnetTags = nil // a pod that names a subnet need not describe it
	}
	if len(r.SecurityGroups) > 0 {
		policy.SecurityGroups, policy.Choice.Groups = r.SecurityGroups, r.SecurityGroups
	}
	return policy
}

// ofRequest is between the parts of the name of a derived pool.
const ofRequest = "/"

// Nameable reports whether a pool of a configuration may have the name. validate refuses others, and no ADD does: an
// earlier release accepted them.
func Nameable(pool string) bool { return pool != "" && !strings.ContainsAny(pool, ofRequest+ofAddr) }

// derivedName returns the name of a derived pool: the pool's own name, then the IDs. Exclusive ENIs
// have pools of their own, so no other pod gets their addresses, also when the registry is lost.
func derivedName(pool string, r nic.Request) string {
	if r.Exclusive && r.ENI == "" {
		pool = cmp.Or(pool, DefaultPool) + ofRequest + "exclusive"
	}
	ids := slices.DeleteFunc([]string{r.Subnet, r.ENI}, func(id string) bool { return id == "" })
	return strings.Join(slices.Concat([]string{cmp.Or(pool, DefaultPool)}, ids, r.SecurityGroups), ofRequest)
}

// Derived returns the pool from which a pool is derived, if it is.
func Derived(pool string) (from string, ok bool) {
	from, _, ok = strings.Cut(pool, ofRequest)
	return from, ok
}

// Origin returns the pool of the configuration from which a pool is derived, or the pool itself.
func Origin(pool string) string {
	from, derived := Derived(pool)
	if derived && from == DefaultPool {
		return ""
	}
	return from
}

// answers returns an error if no interface can be as the request wants it.
func (policy Policy) answers(r nic.Request) error {
	const most = 256 // of the value of a tag (EC2 user guide, "Tag restrictions"): the name of a pool is one
	if len(policy.Pool) > most {
		return fmt.Errorf(
			"securityGroups: %d groups: want fewer: their IDs are in the tag %s, which has at most %d characters",
			len(r.SecurityGroups), AnnotationPool, most)
	}
	for _, a := range r.Addrs {
		if !slices.Contains(policy.Families, nl.FamilyOf(a)) {
			return fmt.Errorf("ip: %s: pods of this network have no %v addresses (ipFamilies)", a, nl.FamilyOf(a))
		}
	}
	return nil
}

// Requestable reports whether pods may ask for an ENI with these tags, which others have created.
// No other pod gets its addresses.
func (policy Policy) Requestable(tags map[string]string) bool {
	of := func(r registry.OnRequest) bool { return hasAll(tags, r.Tags) }
	return hasOne(tags, policy.requests) || slices.ContainsFunc(policy.onRequest, of)
}

// Heed reserves the ENIs for which pods of one network may ask: no other pod gets their addresses. It notes such ENIs
// of this policy's network, and returns the policy with such ENIs of the other networks. An empty network stands for
// all conflists of the node.
func (policy Policy) Heed(s *registry.State, network string) Policy {
	if len(s.OnRequest)+len(policy.requests) == 0 {
		return policy
	}
	all := slices.DeleteFunc(slices.Clone(s.OnRequest), func(r registry.OnRequest) bool { return r.Network == network })
	for _, tags := range policy.requests {
		all = append(all, registry.OnRequest{Network: network, Tags: tags})
	}
	slices.SortStableFunc(all, func(a, b registry.OnRequest) int { return strings.Compare(a.Network, b.Network) })
	if !slices.EqualFunc(all, s.OnRequest, registry.OnRequest.Equal) {
		s.OnRequest = all
	}
	policy.Pools, policy.onRequest = policy.Pools || len(all) > 0, all
	return policy
}

// Together has each policy of a node pass over the ENIs for which pods of another one may ask.
func Together(policies []Policy) []Policy {
	requests := Common(policies...).requests
	for i := range policies {
		policies[i].requests = requests
	}
	return policies
}

// Common returns what a collection needs of the policies of a node's networks, which is the same for all pools of a
// network. A collection asks EC2 for no change that one of the networks forbids.
func Common(networks ...Policy) (c Policy) {
	for _, p := range networks {
		if c.Provision == "" || p.Provision == ProvisionNone || p.Provision == ProvisionAssign &&
			c.Provision == ProvisionFull {
			c.Provision = p.Provision
		}
		c.Pools, c.Peers = c.Pools || p.Pools, c.Peers || p.Peers
		for _, tags := range p.requests { // the pools of a network have the same
			if !slices.ContainsFunc(c.requests, func(r map[string]string) bool { return maps.Equal(r, tags) }) {
				c.requests = append(c.requests, tags)
			}
		}
	}
	return c
}

// Allows reports whether the pod may have the ENI with these tags that it has chosen.
func (c Choice) Allows(tags map[string]string) bool { return hasOne(tags, c.Tags) }

// hasOne reports whether there are all tags of one of the maps.
func hasOne(tags map[string]string, of []map[string]string) bool {
	return slices.ContainsFunc(of, func(wanted map[string]string) bool { return hasAll(tags, wanted) })
}

// hasAll reports whether there are all of the wanted tags.
func hasAll(tags, wanted map[string]string) bool {
	for k, want := range wanted {
		if v, ok := tags[k]; !ok || v != want {
			return false
		}
	}
	return true
}

// oneShared refuses what only a link in the pod can be: a routed pod has its pair, and shares the ENI.
func (policy Policy) oneShared(pod plugin.Pod, asked []nic.Request) error {
	exclusive := slices.ContainsFunc(asked, func(r nic.Request) bool { return r.Exclusive })
	if !policy.Routed || len(asked) == 1 && !exclusive {
		return nil
	}
	what := fmt.Sprintf("%d interfaces", len(asked))
	if exclusive {
		what = "a whole ENI"
	}
	return plugin.Errorf(plugin.CodeRefused, `ask for one interface that is not exclusive; or use a pool with `+
		`dataPath "ipvlan", by the namespace of the pod or the annotation `+AnnotationPool,
		`pod %s asks for %s: the pool %s has dataPath "veth", whose pods have one veth pair`, pod, what,
		cmp.Or(policy.Pool, DefaultPool))
}
