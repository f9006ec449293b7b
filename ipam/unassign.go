// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// idle reports whether an address of the ENI has been free for at least FreeAfter. The time
// counts from the end of its last lease. If it has had no lease, the time counts from the last
// growth of the ENI. While a namespace cannot be read, no address is idle.
func (c *Collection) idle(s *registry.State, e registry.ENI, a netip.Addr, now time.Time) bool {
	since, free := s.Free.At(a)
	if since.IsZero() {
		since = e.Grown
	}
	return free && now.Sub(since) >= c.FreeAfter && c.used.Of(e.MAC, a) == "" && !c.used.Partial
}

// idlePrefix reports whether all addresses of a prefix have been free for at least FreeAfter.
func (c *Collection) idlePrefix(s *registry.State, e registry.ENI, b registry.Prefix, now time.Time) bool {
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
	return !c.used.Any(e.MAC, b.CIDR.Contains)
}

// empty reports whether an ENI has no lease, and all its addresses and prefixes are idle. It
// compares the ENI of each lease, not only the address: a pod that has lost its address still
// has its link on the ENI.
func (c *Collection) empty(s *registry.State, id string, now time.Time) bool {
	e := s.ENIs[id]
	if c.used.InPod(e.MAC) {
		return false // a pod that has its link may have removed its addresses
	}
	for _, l := range s.Leases.All() {
		if l.ENI == id {
			return false
		}
	}
	return !slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return !c.idle(s, e, a, now) }) &&
		!slices.ContainsFunc(e.Prefixes, func(b registry.Prefix) bool { return !c.idlePrefix(s, e, b, now) })
}

// unassignIdle unassigns idle prefixes and addresses, ENI by ENI. It ends when the outcome of a call is unknown.
func (p *Pool) unassignIdle(ctx context.Context, c *Collection) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		// These are two calls to EC2: one may fail and the other succeed.
		for _, choose := range []choice{c.releasablePrefixes, c.releasableAddrs} {
			gone, err := p.release(ctx, id, c.heeding(choose))
			if errors.Is(err, errGrowing) {
				slog.Info(err.Error())
				return failed
			}
			failed = errors.Join(failed, err)
			if aws.MaybeDone(err) {
				return failed // in an incident of EC2, each further call would only take addresses from pods that come
			}
			c.Unassigned, c.Returned = append(c.Unassigned, gone.list()...), append(c.Returned, gone.cidrs()...)
		}
	}
	return failed
}

// A choice returns the addresses or prefixes that an ENI can lose.
type choice func(s *registry.State, eni string, now time.Time) releasable

// A releasable has the addresses, or the prefixes, that one call to EC2 unassigns from an ENI.
type releasable struct {
	addrs    map[netip.Addr]time.Time // and since when each has been free
	prefixes []registry.Prefix
}

func (x releasable) empty() bool { return len(x.addrs)+len(x.prefixes) == 0 }

// list returns the addresses in order.
func (x releasable) list() []netip.Addr {
	return slices.SortedFunc(maps.Keys(x.addrs), netip.Addr.Compare)
}

// cidrs returns the prefixes.
func (x releasable) cidrs() (cidrs []netip.Prefix) {
	for _, b := range x.prefixes {
		cidrs = append(cidrs, b.CIDR)
	}
	return cidrs
}

// only returns the addresses and prefixes of x for which addr and block return true.
func (x releasable) only(addr func(netip.Addr) bool, block func(netip.Prefix) bool) releasable {
	some := releasable{addrs: map[netip.Addr]time.Time{}}
	for a, since := range x.addrs {
		if addr(a) {
			some.addrs[a] = since
		}
	}
	for _, b := range x.prefixes {
		if block(b.CIDR) {
			some.prefixes = append(some.prefixes, b)
		}
	}
	return some
}

// without returns the addresses and prefixes of x that are not in other.
func (x releasable) without(other releasable) releasable {
	return x.only(func(a netip.Addr) bool { _, ok := other.addrs[a]; return !ok }, func(c netip.Prefix) bool { return !slices.Contains(other.cidrs(), c) })
}

// release first removes the chosen addresses or prefixes from the registry, so that no ADD
// takes them. Then it unassigns them from the ENI. If the process ends in between, the ENI
// still has them, and a later Learn finds them.
//
// It holds the lock of growth. Else EC2 could give a pod of this ENI what has just left it. If the answer to
// release's call is lost, the call is repeated, and would take the address from that pod.
func (p *Pool) release(ctx context.Context, id string, choose choice) (releasable, error) {
	if err := p.turn(ctx, unassign); err != nil {
		return releasable{}, err
	}
	s, err := p.Registry.View()
	if err != nil || choose(s, id, time.Now()).empty() {
		return releasable{}, err
	}
	unlock, err := p.growthLock(ctx)
	if err != nil {
		return releasable{}, err
	}
	defer unlock()
	var x releasable
	err = p.Registry.Change(ctx, func(s *registry.State) {
		x = choose(s, id, time.Now())
		withdraw(s, id, x)
	})
	if err != nil || x.empty() {
		return releasable{}, err
	}
	return p.unassign(ctx, id, x)
}

// growthLock takes the lock of growth for a collection. A growth may go on for minutes while EC2 throttles. What is idle can wait for
// the next collection, and the rest of this one goes on.
func (p *Pool) growthLock(ctx context.Context) (unlock func(), err error) {
	unlock, err = p.lockSoon(ctx, "grow")
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errGrowing
	}
	return unlock, err
}

// lockSoon takes a lock if nobody has it for long.
func (p *Pool) lockSoon(ctx context.Context, name string) (unlock func(), err error) {
	const most = 10 * time.Second
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return p.Registry.Lock(waiting, name)
}

// errGrowing means that a growth is under way.
var errGrowing = errors.New("a growth is under way: this collection unassigns nothing more")

// releasablePrefixes chooses the prefixes that an ENI is to lose. It chooses no /80: a /80 costs
// nothing, and stays as long as its ENI.
func (c *Collection) releasablePrefixes(s *registry.State, id string, now time.Time) (x releasable) {
	spare, e := c.spare(s, id, now), s.ENIs[id]
	for _, b := range e.Prefixes {
		if b.CIDR.Addr().Is4() && spare >= blockSize && c.idlePrefix(s, e, b, now) {
			x.prefixes, spare = append(x.prefixes, b), spare-blockSize
		}
	}
	return x
}

// releasableAddrs chooses the IPv4 addresses that an ENI is to lose, but never its primary one.
func (c *Collection) releasableAddrs(s *registry.State, id string, now time.Time) releasable {
	e, x, spare := s.ENIs[id], releasable{addrs: map[netip.Addr]time.Time{}}, c.spare(s, id, now)
	for _, a := range e.Addrs {
		if a.Is4() && spare > 0 && a != e.Primary() && c.idle(s, e, a, now) {
			x.addrs[a], _ = s.Free.At(a)
			spare--
		}
	}
	return x
}

// spare returns how many addresses an ENI can lose at most. It leaves what its pool wants to
// keep ready, which is nothing of an ENI that interfaceIndex passes over. An ENI loses nothing
// if no ADD may take its addresses for another reason, if it has Keep, or if it was to be deleted
// and EC2 did not answer.
func (c *Collection) spare(s *registry.State, id string, now time.Time) int {
	e := s.ENIs[id]
	if !e.Serving || e.Foreign || e.TagsUnknown != "" || e.Keep || e.Draining || !e.Missed.IsZero() || slices.Contains(c.kept, id) {
		return 0
	}
	spare := lease.Ready(s, e.Pool, now) - s.Warm[e.Pool].Left()
	if e.Passed {
		spare = math.MaxInt
	}
	if c.Max >= 0 {
		spare = min(spare, c.Max-len(c.Unassigned)-blockSize*len(c.Returned))
	}
	return spare
}

// withdraw removes the addresses and prefixes x of an ENI from the registry. In EC2 they are
// about to leave the ENI, or have left it. Their leases stay until the pods end.
func withdraw(s *registry.State, id string, x releasable) {
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

// The EC2 actions that take addresses or prefixes of a family from an ENI.
const (
	unassign  = "UnassignPrivateIpAddresses"
	unassign6 = "UnassignIpv6Addresses"
)

// unassign unassigns x, which is of one family, from the ENI in one call, and returns what has left the ENI. The caller
// has withdrawn x from the registry, and holds the lock of growth. EC2 takes all or nothing. If somebody else has unassigned
// a part of x, unassign asks EC2 to take the rest.
//
// If EC2 refuses, unassign puts the rest back into the registry. If the outcome is not known,
// the rest stays out of the registry until metadata shows it.
func (p *Pool) unassign(ctx context.Context, id string, x releasable) (gone releasable, err error) {
	if err := p.Registry.Mark(releasedMark); err != nil {
		return releasable{}, errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { restore(s, id, x) }))
	}
	rest, err := x, p.take(ctx, id, x)
	if isPartial(err) {
		if rest, err = p.still(ctx, id, x, err); err == nil {
			err = p.take(ctx, id, rest)
		}
	}
	if gone = x; err != nil {
		gone = x.without(rest)
	}
	return gone, errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		// Withdraw again: if the registry was lost meanwhile, another process may have learned x again.
		withdraw(s, id, gone)
		if errors.Is(err, aws.ErrThrottled) {
			s.NotBefore[unassign] = time.Now().Add(p.backoff(0))
		}
		if aws.Undone(err) && !isPartial(err) {
			restore(s, id, rest)
		}
	}))
}

// isPartial reports whether EC2 has refused because the ENI no longer has all that it was to lose.
func isPartial(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && (e.Action == unassign || e.Action == unassign6) && e.Code == "InvalidParameterValue"
}

// take calls EC2 to unassign addresses or prefixes from an ENI.
func (p *Pool) take(ctx context.Context, id string, x releasable) error {
	var err error
	switch addrs, cidrs := x.list(), x.cidrs(); {
	case len(cidrs) > 0:
		err = p.Cloud.UnassignPrefixes(ctx, id, cidrs...)
	case slices.ContainsFunc(addrs, netip.Addr.Is6):
		err = p.Cloud.UnassignIPv6(ctx, id, addrs, nil)
	default:
		err = p.Cloud.Unassign(ctx, id, addrs...)
	}
	if errors.Is(err, aws.ErrNotFound) {
		return nil // the ENI is gone, and so are its addresses
	}
	return err
}

// still returns the part of x that EC2 still shows on the ENI. EC2 has refused to take
// all of x, with the error why. If EC2 does not answer now, still returns all of x.
func (p *Pool) still(ctx context.Context, id string, x releasable, why error) (releasable, error) {
	enis, err := p.describeENIs(ctx, aws.ByID(id))
	if err != nil {
		return x, errors.Join(why, err)
	}
	var e aws.ENI
	if len(enis) > 0 {
		e = enis[0]
	}
	rest := x.only(func(a netip.Addr) bool { return slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a) },
		func(c netip.Prefix) bool { return slices.Contains(e.Prefixes, c) })
	gone := x.without(rest)
	slog.Warn("some addresses were not on the ENI any more: somebody else, or an earlier attempt, has unassigned them", "eni", id, "addrs", gone.list(), "prefixes", gone.cidrs())
	return rest, nil
}

// restore puts back into the registry what EC2 has refused to take.
func restore(s *registry.State, id string, x releasable) {
	for a, since := range x.addrs {
		addAddrs(s, id, []netip.Addr{a}, since)
	}
	for _, b := range x.prefixes {
		addPrefixes(s, id, []netip.Prefix{b.CIDR}, b.Since)
	}
}
