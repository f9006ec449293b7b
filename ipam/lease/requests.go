// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
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

// A pod may ask for its interfaces (see package nic) if a [Permission] allows it. If a pod asks for a subnet, for
// security groups, for an ENI or for a whole ENI, a derived pool serves the pod. A derived pool has its own ENIs. Pods
// with the same request share a derived pool.

// A Choice is what a pod has chosen for one of its interfaces. In the zero Choice, the pod has chosen nothing, and the
// policy decides.
type Choice struct {
	Subnet string       // ID of the subnet of the pod's ENI; empty: any subnet with the policy's tags
	Addrs  []netip.Addr // the pod's addresses, at most one of each family; none: any address of the family
	ENI    string       // ID of the pod's ENI, which an operator or another program has created
	Groups []string     // IDs of the security groups of the pod's ENI; none: the groups of the policy
	Pod    registry.Pod // the pod that asks

	// Tags says which tags the chosen ENI must have. The ENI must have all tags of at least one map.
	Tags []map[string]string

	Exclusive bool // the pod gets a whole ENI, so no other pod has an address of it
	Takeover  bool // the node may take the pod's addresses from ENIs of ended instances

	// Together is the number of interfaces that this ADD makes. Max is the largest number of interfaces that all ADDs
	// of the pod together may make, or 0 if the request needs no permission.
	Together, Max int
}

// Chooses reports whether the pod has chosen a subnet, addresses, an ENI or a whole ENI. If the pod has chosen only
// security groups, Chooses returns false.
func (c Choice) Chooses() bool {
	return c.Subnet != "" || len(c.Addrs) > 0 || c.ENI != "" || c.Exclusive
}

// leaseOrder returns the turn of an interface in an ADD, from 0 to 2: see [Pool.Each].
func (c Choice) leaseOrder() int {
	switch {
	case c.ENI != "":
		return 2
	case len(c.Addrs) > 0:
		return 0
	}
	return 1
}

// Addr returns the pod's chosen address of a family, if the pod has chosen one.
func (c Choice) Addr(f Family) (netip.Addr, bool) {
	a := nl.FirstAddr(c.Addrs, f)
	return a, a.IsValid()
}

// Interfaces returns the policy of each interface that an ADD makes for the pod. A pod that asks for nothing has one
// interface, with the policy of its pool. If the pod must not have what it asks for, or its request is wrong,
// Interfaces returns an error.
func (c *Config) Interfaces(network, ifName string, pod plugin.Pod) ([]Policy, error) {
	base, err := c.Choose(pod)
	if err != nil {
		return nil, err
	}
	if c.Asked.Annotated(ifName) && !slices.ContainsFunc(c.Permissions,
		func(p Permission) bool { return p.isFor(pod) }) {
		return nil, noPermission(pod) // the annotation is not parsed, because the parsing may take long
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
	granted, err := c.grantFor(pod, asked)
	if err != nil {
		return nil, err
	}
	if err := base.checkShared(pod, asked); err != nil {
		return nil, err
	}
	var all []Policy
	for _, r := range asked {
		p := base.derivedPolicy(r, granted.tags)
		p.Choice.Together, p.Choice.Max, p.Choice.Takeover = len(asked), granted.max, granted.takeover
		p.Choice.Pod = registry.Pod{Network: network, Namespace: pod.Namespace, Name: pod.Name}
		if err := p.checkPossible(r); err != nil {
			return nil, plugin.Errorf(plugin.CodeRefused,
				"ask for something else, or change the network configuration of the node", "pod %s: %w", pod, err)
		}
		all = append(all, p)
	}
	return all, nil
}

// A grant is what a pod may have: the most generous values of the permissions that allow its request.
type grant struct {
	max      int                 // largest number of interfaces of the pod; 0: the pod asks for nothing
	tags     []map[string]string // tags of ENIs that the pod may have
	takeover bool                // the node may take the pod's addresses from ended instances
}

// grantFor combines all permissions that allow everything that a pod asks for. If no permission allows everything, the
// error names what the first permission for the pod's namespace does not allow.
func (c *Config) grantFor(pod plugin.Pod, asked []nic.Request) (all grant, _ error) {
	if !slices.ContainsFunc(asked, nic.Request.Asks) && len(asked) == 1 {
		return grant{}, nil
	}
	var nearest error
	for _, p := range c.Permissions {
		if !p.isFor(pod) {
			continue
		}
		if err := p.checkRequests(asked); err != nil {
			nearest = cmp.Or(nearest, err)
			continue
		}
		all.max, all.takeover = max(all.max, p.Max, 1), all.takeover || p.Takeover
		if len(p.ENIs) > 0 { // a map without tags would mean any ENI
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
		"pod %s asks for something that the key \"requests\" does not allow for the namespace %s: %w",
		pod, pod.Namespace, nearest)
}

const allowHint = "an administrator of the node can allow this request by the key \"requests\" of the network " +
	"configuration"

// noPermission returns the error of a pod whose namespace may ask for nothing.
func noPermission(pod plugin.Pod) error {
	return plugin.Errorf(plugin.CodeRefused, allowHint,
		"pod %s asks for interfaces, and the key \"requests\" does not allow the namespace %q to ask", pod,
		pod.Namespace)
}

// derivedPolicy returns the policy of the pod's own pool, with the changes that the pod asks for. A derived pool keeps
// no warm addresses, because the node does not know future requests.
func (policy Policy) derivedPolicy(r nic.Request, tags []map[string]string) Policy {
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
		policy.SubnetTags = nil // the pod names the subnet, so tags of the subnet do not count
	}
	if len(r.SecurityGroups) > 0 {
		policy.SecurityGroups, policy.Choice.Groups = r.SecurityGroups, r.SecurityGroups
	}
	return policy
}

// requestSep separates the parts of the name of a derived pool.
const requestSep = "/"

// Nameable reports whether a configured pool may have this name. An ADD still accepts other names, as an earlier
// version of this suite did. Only the operator's tool refuses them.
func Nameable(pool string) bool { return pool != "" && !strings.ContainsAny(pool, requestSep+addrSep) }

// derivedName returns the name of a derived pool: the name of the pod's pool and the IDs in the request. If the pod
// asks for a whole ENI, but does not name the ENI, the pool's name also has the word "exclusive". An ENI of the pool
// has a tag whose value is the pool's name. So only pods that ask for whole ENIs get this ENI, even after a loss of the
// registry.
func derivedName(pool string, r nic.Request) string {
	if r.Exclusive && r.ENI == "" {
		pool = cmp.Or(pool, DefaultPool) + requestSep + "exclusive"
	}
	ids := slices.DeleteFunc([]string{r.Subnet, r.ENI}, func(id string) bool { return id == "" })
	return strings.Join(slices.Concat([]string{cmp.Or(pool, DefaultPool)}, ids, r.SecurityGroups), requestSep)
}

// Derived returns the name of the pool from which a pool is derived. If the pool is not derived, ok is false.
func Derived(pool string) (from string, ok bool) {
	from, _, ok = strings.Cut(pool, requestSep)
	return from, ok
}

// Origin returns the configured pool from which a pool is derived. If the pool is not derived, Origin returns the pool
// itself.
func Origin(pool string) string {
	from, derived := Derived(pool)
	if derived && from == DefaultPool {
		return ""
	}
	return from
}

// checkPossible returns an error if the request can never succeed.
func (policy Policy) checkPossible(r nic.Request) error {
	const most = 256 // characters of a tag's value, such as a pool's name (EC2 user guide, "Tag restrictions")
	if len(policy.Pool) > most {
		return fmt.Errorf(
			"securityGroups: %d groups: want fewer, because the tag %s gets their IDs, and can have at most %d "+
				"characters",
			len(r.SecurityGroups), AnnotationPool, most)
	}
	for _, a := range r.Addrs {
		if !slices.Contains(policy.Families, nl.FamilyOf(a)) {
			return fmt.Errorf("ip: %s: pods of this network have no %v addresses (ipFamilies)", a, nl.FamilyOf(a))
		}
	}
	return nil
}

// Requestable reports whether pods may ask by ID for an ENI with these tags. A pod that does not ask for such an ENI
// gets no address of it.
func (policy Policy) Requestable(tags map[string]string) bool {
	of := func(r registry.OnRequest) bool { return HasTags(tags, r.Tags) }
	return hasOne(tags, policy.requests) || slices.ContainsFunc(policy.onRequest, of)
}

// Heed records the request tags of the network in the registry: the tags of the ENIs for which its pods may ask. It
// returns the policy with the request tags of all networks of the node. So the policy's pool does not use the ENIs with
// these tags. If network is empty, the policy is for all conflists of the node.
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

// Together gives to each policy the request tags of all policies: see Heed. So pods get addresses of an ENI with such
// tags only if they ask for the ENI.
func Together(policies []Policy) []Policy {
	requests := Common(policies...).requests
	for i := range policies {
		policies[i].requests = requests
	}
	return policies
}

// Common returns one policy for a collection, from the policies of a node's networks. The policy has only values that
// all pools of a network share. Its Provision is the one that allows the fewest changes, because a network may forbid
// changes that another network allows.
//
// The field Changes is true if a network allows changes in EC2: metadata may lag behind such a change. The field
// AnyMakesENIs is true if a network may create ENIs. The collection then sets DeleteOnTermination of these ENIs.
func Common(networks ...Policy) (c Policy) {
	for _, p := range networks {
		if c.Provision == "" || p.Provision == ProvisionNone || p.Provision == ProvisionAssign &&
			c.Provision == ProvisionFull {
			c.Provision = p.Provision
		}
		c.Pools, c.Peers = c.Pools || p.Pools, c.Peers || p.Peers
		c.Changes = c.Changes || p.Changes || p.Provision != ProvisionNone
		c.AnyMakesENIs = c.AnyMakesENIs || p.AnyMakesENIs || p.Provision == ProvisionFull
		for _, tags := range p.requests { // the pools of a network have the same requests
			if !slices.ContainsFunc(c.requests, func(r map[string]string) bool { return maps.Equal(r, tags) }) {
				c.requests = append(c.requests, tags)
			}
		}
	}
	return c
}

// Allows reports whether the pod may choose an ENI with these tags.
func (c Choice) Allows(tags map[string]string) bool { return hasOne(tags, c.Tags) }

// hasOne reports whether tags has all tags of at least one of the maps.
func hasOne(tags map[string]string, of []map[string]string) bool {
	return slices.ContainsFunc(of, func(wanted map[string]string) bool { return HasTags(tags, wanted) })
}

// HasTags reports whether tags has all of the wanted tags. A missing tag is not the same as a tag with an empty value.
func HasTags(tags, wanted map[string]string) bool {
	for k, want := range wanted {
		if v, ok := tags[k]; !ok || v != want {
			return false
		}
	}
	return true
}

// checkShared returns an error if a routed pod asks for several interfaces or for a whole ENI. A routed pod has only
// one veth pair, and shares its ENI.
func (policy Policy) checkShared(pod plugin.Pod, asked []nic.Request) error {
	exclusive := slices.ContainsFunc(asked, func(r nic.Request) bool { return r.Exclusive })
	if !policy.Routed || len(asked) == 1 && !exclusive {
		return nil
	}
	what := fmt.Sprintf("%d interfaces", len(asked))
	if exclusive {
		what = "a whole ENI"
	}
	return plugin.Errorf(plugin.CodeRefused, `ask for one interface that is not exclusive. Or put the pod into a pool `+
		`with dataPath "ipvlan": by the annotation `+AnnotationPool+`, or by its namespace`,
		`pod %s asks for %s, and pods of the pool %s have only one veth pair, because its dataPath is "veth"`,
		pod, what,
		cmp.Or(policy.Pool, DefaultPool))
}
