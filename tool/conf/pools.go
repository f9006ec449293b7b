// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package conf

import (
	"cmp"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Policies returns those of the pools of all conflists in a directory. It returns nil if there is none, or if not all can be read, or if dir is
// a file: then nobody knows which pools there are.
func Policies(dir string) []lease.Policy {
	if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
		return nil
	}
	return load(dir).policies()
}

// Common is what a collection needs of all conflists in a directory, or of one. It is empty if none is ours. Its error means that
// nobody can read what a collection may do: one of ours has a mistake, or nobody can parse the only ones.
func Common(path string) (lease.Policy, error) {
	n := load(path)
	if errors.Is(n.missing, fs.ErrNotExist) {
		return lease.Policy{}, nil
	}
	var all []lease.Policy
	unread := n.failed()
	for _, l := range n.ours() {
		config, err := Decode(l.File, l.Plugin(TypeIPAM))
		if err != nil {
			return lease.Policy{}, err
		}
		all = append(all, config.Policies()[0])
	}
	if len(all) > 0 {
		unread = nil
	}
	return lease.Common(all...), unread
}

// Wanted returns how many free IPv4 addresses the pools want, as growth reckons them. A pool that no configuration has
// any more wants none. Without a configuration, it is the warm.min that the last ADD has read.
func Wanted(path string, s *registry.State) map[string]int {
	noted, wanted := map[string]int{}, map[string]int{}
	for pool, w := range s.Warm {
		noted[pool] = w.Min
	}
	all := load(path).policies()
	if len(all) == 0 {
		return noted
	}
	for _, p := range all {
		if _, known := noted[p.Pool]; known && slices.Contains(p.Families, lease.IPv4) {
			wanted[p.Pool] = max(wanted[p.Pool], p.Wanted(s))
		}
	}
	return wanted
}

// Pools returns a policy for each pool of all conflists, to fill the pool. Networks may share a pool. Then it is the policy of the first one,
// with the largest numbers of free addresses, as collections keep them. It skips a conflist that cannot be read, but one must be there.
func Pools(path string) (pools []lease.Policy, err error) {
	for _, p := range readable(path) {
		i := slices.IndexFunc(pools, func(q lease.Policy) bool { return q.Pool == p.Pool })
		if i < 0 {
			pools = append(pools, p)
			continue
		}
		w := &pools[i].Warm
		w.Min, w.Max = max(w.Min, p.Warm.Min), max(w.Max, p.Warm.Max)
	}
	if len(pools) == 0 {
		_, err = Find(path)
	}
	return pools, err
}

// readable returns the policies of all pools of those conflists that can be read.
func readable(path string) (all []lease.Policy) {
	for _, l := range load(path).ours() {
		all = append(all, l.policies()...)
	}
	return lease.Together(all)
}

// Routed returns the CIDRs to which pods of some network have routes by their ENI, whatever metadata shows.
func Routed(path string) (all []netip.Prefix) {
	for _, p := range readable(path) {
		all = append(all, p.Routes...)
	}
	return all
}

// PoliciesOf returns the policies of the pools of one network.
func PoliciesOf(path, network string) []lease.Policy {
	for _, l := range load(path).ours() {
		if l.Name == network {
			return l.policies()
		}
	}
	return nil
}

// LowestIndex returns the lowest interfaceIndex of the conflists, and 0 without any. No pod of the node gets an address of an ENI below.
func LowestIndex(path string) int {
	var indices []int
	for _, p := range load(path).policies() {
		indices = append(indices, p.MinIndex)
	}
	if len(indices) == 0 {
		return 0
	}
	return slices.Min(indices)
}

// MostENIs returns how many ENIs the instance may have: as many as its type can, and maxENIs of a network allows. 0: nobody knows yet.
func MostENIs(path string, s *registry.State) int {
	most := 0
	for _, p := range load(path).policies() {
		most = max(most, cmp.Or(p.MaxENIs, s.Instance.ENIs))
	}
	return min(cmp.Or(most, s.Instance.ENIs), s.Instance.ENIs)
}

// policies returns those of all pools of all lists. If nobody can read one of these, it returns none.
func (n node) policies() (all []lease.Policy) {
	for _, l := range n.ours() {
		pools := l.policies()
		if pools == nil {
			return nil
		}
		all = append(all, pools...)
	}
	if n.failed() != nil {
		return nil
	}
	return all
}

// policies returns those of the list's pools, or nil if ipam's configuration has a mistake.
func (c List) policies() []lease.Policy {
	config, err := Decode(c.File, c.Plugin(TypeIPAM))
	if err != nil {
		return nil
	}
	return config.Policies()
}
