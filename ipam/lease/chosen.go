// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about addresses that a pod has chosen. While a chosen address cools, only the last pod of the address
// can get the address. Other hosts may remember which pod had the address. This knowledge stays true, because the
// address returns to that pod.

// hasCooled reports whether the pod can have the address that it has chosen. The last owner of the address waits only
// while the registry's free addresses are unconfirmed. Any other pod can have the address if the address became free
// before cutoff, or if no pod of this node has had the address.
func (c Choice) hasCooled(s *registry.State, a netip.Addr, cutoff time.Time) bool {
	if s.Leases.Has(a) {
		return false
	}
	since, free := s.Free.At(a)
	_, e := s.ENIOf(a)
	listed := slices.Contains(e.Addrs, a) // false: the address is in a prefix
	switch {
	case free && c.wasLastOwner(s, a):
		_, unconfirmed := s.Unconfirmed()
		return !unconfirmed
	case free:
		return since.Before(cutoff)
	}
	return !listed
}

// wasLastOwner reports whether this pod was the last pod that had the address.
func (c Choice) wasLastOwner(s *registry.State, a netip.Addr) bool {
	owner, ok := s.Owners[a]
	return ok && owner == c.Pod
}

// refusal returns an error if the registry shows why the pod cannot have what it has chosen.
func (policy Policy) refusal(s *registry.State, o Owner, now time.Time) error {
	if err := policy.Choice.checkMax(s, o); err != nil {
		return err
	}
	for _, a := range policy.Choice.Addrs {
		if err := policy.addrRefusal(s, o, a, now); err != nil {
			return err
		}
	}
	return nil
}

// checkHeld returns an error if the pod's request does not fit the addresses that the attachment has from an earlier
// ADD. These are the addresses addrs, on the ENI eni. If the ENI's pool or the requested pool is derived, the two pools
// must be the same. Configured pools may differ, because an operator may rename them.
func (policy Policy) checkHeld(s *registry.State, o Owner, eni string, addrs []netip.Addr) error {
	c, e := policy.Choice, s.ENIs[eni]
	l, _ := s.Leases.At(addrs[0])
	lacks := func(a netip.Addr) bool { return !slices.Contains(addrs, a) }
	asked := strings.Contains(policy.Pool+e.Pool, requestSep)
	fits := c.ENI == eni || c.ENI == "" && !e.OnRequest && (!asked || e.Pool == policy.Pool)
	if fits && !slices.ContainsFunc(c.Addrs, lacks) && (l.Exclusive || !c.Exclusive) {
		return nil
	}
	return plugin.Errorf(plugin.CodeTryAgain, "the runtime must delete the attachment (DEL) before it adds the "+
		"attachment again",
		"%s has %v of %s from an earlier ADD, and these addresses do not fit the present request of the pod",
		o.displayName(), addrs, eni)
}

// anyRefusal returns why a pod cannot have all of its interfaces, if the registry shows such a reason.
func (p *Pool) anyRefusal(o Owner, policies []Policy) error {
	s, err := p.Registry.View()
	if err != nil || len(s.Held(o.Key)) > 0 {
		return err
	}
	now := time.Now()
	for nic, policy := range policies {
		o.NIC = nic
		if err := policy.refusal(s, o, now); err != nil {
			return interfaceError(nic, policies, err)
		}
	}
	has, most := s.Attached(), s.Instance.ENIs
	// For a single new ENI, the ADD goes on, and its growth asks EC2 which slots are free.
	if n := newENIs(s, policies, now); n > 1 && most > 0 && has+n > most {
		return plugin.Errorf(plugin.CodeTryAgain,
			"ask for fewer interfaces, end pods that have ENIs of their own, or use a larger instance type",
			"%s asks for %d interfaces, which need %d more ENIs: %s can have %d ENIs, and this node has %d",
			o.displayName(), len(policies), n, cmp.Or(s.Instance.Type, "this instance"), most, has)
	}
	return nil
}

// newENIs returns how many new ENIs the node needs for the interfaces with these policies.
func newENIs(s *registry.State, policies []Policy, now time.Time) int {
	// ids are the existing ENIs that exclusive interfaces get. pools are the pools that need a new ENI, because none of
	// their ENIs can serve the pod.
	var ids, pools []string
	alone := 0
	for _, policy := range policies {
		places := Places(s, policy, now)
		i := slices.IndexFunc(places, func(at Place) bool { return !slices.Contains(ids, at.ID) })
		switch {
		case i >= 0 && policy.Choice.Exclusive:
			ids = append(ids, places[i].ID)
		case i >= 0:
		case policy.Choice.Exclusive && policy.Choice.ENI == "":
			alone++
		case !slices.Contains(pools, policy.Pool):
			pools = append(pools, policy.Pool)
		}
	}
	return alone + len(pools)
}

// checkMax returns an error if the pod would have too many interfaces. Interfaces of the pod's other ADDs count, too.
// Multus makes an ADD for each network of a pod, with the same container ID (the pod's sandbox).
func (c Choice) checkMax(s *registry.State, o Owner) error {
	if c.Max == 0 {
		return nil
	}
	others := map[string]bool{} // a map, because an interface with an address of each family has two leases
	for _, l := range s.Leases.All() {
		if l.ContainerID == o.ContainerID && l.Key != o.Key {
			others[Owner{Key: l.Key, NIC: l.NIC}.waiterKey()] = true
		}
	}
	if n := len(others) + c.Together; n > c.Max {
		return plugin.Errorf(plugin.CodeRefused, "ask for fewer interfaces, or raise \"max\" in the key \"requests\" "+
			"of the network configuration",
			"%s asks for interface %s, and would then have %d interfaces: \"max\" in \"requests\" is %d",
			o.displayName(), o.IfName, n, c.Max)
	}
	return nil
}

func (policy Policy) addrRefusal(s *registry.State, o Owner, a netip.Addr, now time.Time) error {
	const end = "wait until the pod that has the address has ended, or ask for another address"
	l, leased := s.Leases.At(a)
	if leased && (l.Key != o.Key || l.NIC != o.NIC) {
		return plugin.Errorf(plugin.CodeTryAgain, end, "%s asks for the address %s, which %s has", o.displayName(), a,
			cmp.Or(l.PodOf(), l.ContainerID, l.NetNS, "a pod"))
	}
	id, e := s.ENIOf(a)
	if id == "" {
		return nil
	}
	if e.Draining {
		return plugin.Errorf(plugin.CodeTryAgain, "wait until the ENI is released, or ask for another address",
			"%s asks for the address %s, which is on %s, and this node is about to release this ENI",
			o.displayName(), a, id)
	}
	if !policy.usesENI(id, e) {
		return plugin.Errorf(plugin.CodeRefused,
			"ask for another address, or for the pool, subnet, security groups or ENI of this address",
			"%s asks for the address %s, which is on %s of this node: %s",
			o.displayName(), a, id, policy.reasonNotServed(e))
	}
	since, free := s.Free.At(a)
	if !free && !leased && slices.Contains(e.Addrs, a) {
		return plugin.Errorf(plugin.CodeRefused, "ask for another address",
			"%s asks for the address %s, which the node itself has", o.displayName(), a)
	}
	cools := policy.ReuseWait - now.Sub(since)
	if free && cools > 0 && !since.IsZero() && !policy.Choice.wasLastOwner(s, a) {
		return plugin.Errorf(plugin.CodeTryAgain, "wait, or lower reuseIPWait",
			"%s asks for the address %s, which has had no lease since %s, and cools for %v more",
			o.displayName(), a, since.Format(time.RFC3339), cools.Round(time.Second))
	}
	return nil
}

// reasonNotServed returns why the policy's pods get no addresses of an ENI of this node.
func (policy Policy) reasonNotServed(e registry.ENI) string {
	switch {
	case policy.Choice.ENI != "":
		return "the pod asks for an address of " + policy.Choice.ENI
	case !policy.Serves(e):
		return "this ENI serves no pods"
	case e.Pool != policy.Pool:
		return "this ENI serves the pool " + cmp.Or(e.Pool, DefaultPool)
	}
	return cmp.Or(policy.Unserved(e), "this ENI serves no pods")
}

// AnyUnused reports whether there is an ENI on request that has no lease.
func AnyUnused(s *registry.State) bool {
	for id, e := range s.ENIs {
		if e.OnRequest && !HasLeases(s, id) {
			return true
		}
	}
	return false
}

// Awaited reports whether an ADD waits for an address of the ENI, because the ADD's pod has chosen this ENI.
func Awaited(s *registry.State, eni string, now time.Time) bool {
	for _, w := range s.Waiters {
		pool, _, _ := strings.Cut(w.Pool, addrSep)
		if now.Before(w.Until) && slices.Contains(strings.Split(pool, requestSep), eni) {
			return true
		}
	}
	return false
}

// HasLeases reports whether the registry has a lease on the ENI.
func HasLeases(s *registry.State, id string) bool {
	for _, l := range s.Leases.All() {
		if l.ENI == id {
			return true
		}
	}
	return false
}

// recordRequest records that a pod uses the ENI for which it has asked.
func (p *Pool) recordRequest(s *registry.State, id string) {
	if p.Policy.Choice.ENI == id && !s.ENIs[id].OnRequest && p.Policy.Provision != ProvisionNone {
		s.Edit(id, (*registry.ENI).Request)
	}
}
