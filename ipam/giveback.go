// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// idle tells whether an address of the ENI has been free for as long as the collection
// asks: since it was released, or, if it never was in use, since EC2 gave it.
func (c *Collection) idle(s *registry.State, e registry.ENI, a netip.Addr, now time.Time) bool {
	since, free := s.Free.At(a)
	if since.IsZero() {
		since = e.Grown
	}
	return free && now.Sub(since) >= c.FreeAfter && c.used.By[a] == "" && !c.used.Partial
}

// idlePrefix tells whether all of a prefix has been free for so long.
func (c *Collection) idlePrefix(s *registry.State, b registry.Prefix, now time.Time) bool {
	if now.Sub(b.Since) < c.FreeAfter || c.used.Partial {
		return false
	}
	for range s.Leases.Within(b.CIDR) {
		return false
	}
	for a := range s.Free.Within(b.CIDR) {
		if since, _ := s.Free.At(a); now.Sub(since) < c.FreeAfter {
			return false
		}
	}
	for a := range c.used.By {
		if b.CIDR.Contains(a) {
			return false
		}
	}
	return true
}

// empty tells whether no pod uses an ENI, or has lately.
func (c *Collection) empty(s *registry.State, id string, now time.Time) bool {
	e := s.ENIs[id]
	return !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return !c.idle(s, e, a, now) }) &&
		!slices.ContainsFunc(e.Prefixes, func(b registry.Prefix) bool { return !c.idlePrefix(s, b, now) })
}

// unassignIdle gives back addresses and prefixes, ENI by ENI.
func (p *Pool) unassignIdle(ctx context.Context, c *Collection) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		failed = errors.Join(failed, p.giveBack(ctx, id, c))
	}
	return failed
}

// A surplus is what an ENI is to lose.
type surplus struct {
	addrs    map[netip.Addr]time.Time // with since when they were free
	prefixes []registry.Prefix
}

// giveBack takes what is idle on an ENI out of the registry, so that no ADD takes it,
// and then from the ENI. If it ends in between, the addresses are no longer free but
// still there, and a later Learn finds them.
func (p *Pool) giveBack(ctx context.Context, id string, c *Collection) error {
	const action = "UnassignPrivateIpAddresses"
	if err := p.turn(ctx, action); err != nil {
		return err
	}
	var x surplus
	err := p.Registry.Change(ctx, func(s *registry.State) {
		x = c.surplus(s, id, time.Now())
		withdraw(s, id, x)
	})
	if err != nil {
		return err
	}
	addrs := slices.SortedFunc(maps.Keys(x.addrs), netip.Addr.Compare)
	var cidrs []netip.Prefix
	for _, b := range x.prefixes {
		cidrs = append(cidrs, b.CIDR)
	}
	if err := p.unassign(ctx, id, addrs, cidrs); err != nil {
		return errors.Join(err, p.restore(context.WithoutCancel(ctx), id, x, err))
	}
	c.Unassigned, c.Returned = append(c.Unassigned, addrs...), append(c.Returned, cidrs...)
	if len(addrs)+len(cidrs) == 0 {
		return nil
	}
	// Again: if the registry was lost meanwhile, somebody may have learnt of them anew.
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { withdraw(s, id, x) })
}

// surplus chooses what an ENI is to lose: never the primary address, nor what its pool
// wants to have ready. A /80 costs nothing, and stays as long as its ENI.
func (c *Collection) surplus(s *registry.State, id string, now time.Time) surplus {
	e, x := s.ENIs[id], surplus{addrs: map[netip.Addr]time.Time{}}
	if !e.Serving || e.Foreign || e.Keep || e.Draining {
		return x
	}
	spare := lease.Ready(s, e.Pool, now) - s.Warm[e.Pool].Left()
	if c.Max >= 0 {
		spare = min(spare, c.Max-len(c.Unassigned))
	}
	for _, b := range e.Prefixes {
		if b.CIDR.Addr().Is4() && spare >= blockSize && c.idlePrefix(s, b, now) {
			x.prefixes, spare = append(x.prefixes, b), spare-blockSize
		}
	}
	for _, a := range e.Addrs {
		if a.Is4() && spare > 0 && a != e.Primary() && c.idle(s, e, a, now) {
			x.addrs[a], _ = s.Free.At(a)
			spare--
		}
	}
	return x
}

// withdraw takes what is about to leave an ENI out of the registry.
func withdraw(s *registry.State, id string, x surplus) {
	e, known := s.ENIs[id]
	now := time.Now()
	for a := range x.addrs {
		s.Forget(a)
		s.Gone[a] = now
	}
	e.Addrs = slices.DeleteFunc(e.Addrs, func(a netip.Addr) bool { _, ok := x.addrs[a]; return ok })
	for _, b := range x.prefixes {
		s.Forget(slices.Collect(s.Free.Within(b.CIDR))...)
		s.Gone[b.CIDR.Addr()] = now
	}
	e.Prefixes = slices.DeleteFunc(e.Prefixes, func(b registry.Prefix) bool {
		return slices.ContainsFunc(x.prefixes, func(gone registry.Prefix) bool { return gone.CIDR == b.CIDR })
	})
	if known {
		s.ENIs[id] = e
	}
}

// unassign gives addresses and prefixes of IPv4 back, in one call for each kind.
func (p *Pool) unassign(ctx context.Context, id string, addrs []netip.Addr, cidrs []netip.Prefix) error {
	var failed error
	if len(addrs) > 0 {
		failed = p.Cloud.Unassign(ctx, id, addrs...)
	}
	if len(cidrs) > 0 {
		failed = errors.Join(failed, p.Cloud.UnassignPrefixes(ctx, id, cidrs...))
	}
	if errors.Is(failed, aws.ErrNotFound) {
		return nil // the ENI is gone, and they with it
	}
	return failed
}

// restore puts back what EC2 has refused to take. If its answer was lost, or EC2 says
// that the ENI does not have all of it, as it does to the second of two attempts, the
// addresses may be gone, and stay out of the registry until metadata shows them.
func (p *Pool) restore(ctx context.Context, id string, x surplus, why error) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if errors.Is(why, aws.ErrThrottled) {
			s.NotBefore["UnassignPrivateIpAddresses"] = time.Now().Add(backoff(0))
		}
		if e, ok := errors.AsType[*aws.Error](why); !answered(why) || ok && e.Code == "InvalidParameterValue" {
			return
		}
		for a, since := range x.addrs {
			addAddrs(s, id, []netip.Addr{a}, since)
		}
		for _, b := range x.prefixes {
			addPrefixes(s, id, []netip.Prefix{b.CIDR}, b.Since)
		}
	})
}
