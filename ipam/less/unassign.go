// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// isIdle reports whether an address of the ENI has been free for at least FreeAfter since its last lease, and does not
// cool. If the registry does not have the end of this lease, the address need not cool. isIdle then counts FreeAfter
// from the last growth of the ENI. While a namespace cannot be read, no address is idle.
func (c *Collecting) isIdle(s *registry.State, e registry.ENI, a netip.Addr, now time.Time) bool {
	since, free := s.Free.At(a)
	least := c.leastFree(e.Pool)
	if since.IsZero() {
		since, least = e.Grown, c.FreeAfter
	}
	return free && now.Sub(since) >= least && c.Used.Of(e.MAC, a) == "" && !c.Used.Partial
}

// isIdlePrefix returns true if all addresses of a prefix have been free for at least FreeAfter, and if none cools. The
// registry forgets some cooling addresses of a /80. So for a /80, the cooling also counts from Since, which may be the
// end of a forgotten lease.
func (c *Collecting) isIdlePrefix(s *registry.State, e registry.ENI, b registry.Prefix, now time.Time) bool {
	least := c.FreeAfter
	if b.CIDR.Addr().Is6() {
		least = c.leastFree(e.Pool)
	}
	if now.Sub(b.Since) < least || c.Used.Partial {
		return false
	}
	for range s.Leases.Within(b.CIDR) {
		return false
	}
	for a := range s.Free.Within(b.CIDR) {
		if since, _ := s.Free.At(a); now.Sub(since) < c.leastFree(e.Pool) {
			return false
		}
	}
	return !c.Used.Any(e.MAC, b.CIDR.Contains)
}

// empty returns true if an ENI has no lease, and if all its addresses and prefixes are idle. A lease may name the ENI
// although the ENI has lost the lease's address. The pod of such a lease still has its link on the ENI.
func (c *Collecting) empty(s *registry.State, id string, now time.Time) bool {
	e := s.ENIs[id]
	if c.Used.InPod(e.MAC) {
		return false // the pod with the ENI's link may have removed the addresses from the link
	}
	if slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return !c.isIdle(s, e, a, now) }) ||
		slices.ContainsFunc(e.Prefixes, func(b registry.Prefix) bool { return !c.isIdlePrefix(s, e, b, now) }) {
		return false
	}
	return !lease.HasLeases(s, id)
}

// unassignIdle unassigns idle prefixes and addresses, ENI by ENI. If EC2 throttles or does not answer, it makes no
// further call. If a network of the node has the provision "none", it makes no call.
func (p *Node) unassignIdle(ctx context.Context, c *Collecting) error {
	s, err := p.Registry.View()
	if err != nil || p.Policy.Provision == lease.ProvisionNone {
		return err
	}
	var failed error
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		// Prefixes and addresses need separate calls to EC2, and one of the two calls may fail.
		for _, pick := range []picker{c.releasablePrefixes, c.releasableAddrs} {
			gone, err := p.releaseFrom(ctx, s, id, c.heedingPicker(pick))
			if errors.Is(err, errGrowing) {
				slog.Info(err.Error())
				return failed
			}
			failed, c.stopped = errors.Join(failed, err), c.stopped || stops(err)
			c.Unassigned, c.Returned = append(c.Unassigned, gone.List()...), append(c.Returned, gone.CIDRs()...)
		}
	}
	return failed
}

// A picker returns the addresses or prefixes that an ENI can lose.
type picker func(s *registry.State, eni string, now time.Time) book.Releasable

// heedingPicker returns a picker that calls pick. If pick has something to release, the picker calls heedConflists,
// because ADDs may have recorded something else than the conflists want. If heedConflists changes the registry, the
// picker calls pick again. Without something to release, the picker skips heedConflists, which is slow, because it
// reads all leases.
func (c *Collecting) heedingPicker(pick picker) picker {
	return func(s *registry.State, id string, now time.Time) book.Releasable {
		x := pick(s, id, now)
		if !x.Empty() && c.heedConflists(s) {
			x = pick(s, id, now)
		}
		return x
	}
}

// releaseFrom calls pick, and releases to EC2 what pick returns. It first removes these addresses or prefixes from the
// registry, so that no ADD takes them. Then it unassigns them from the ENI, and returns what the ENI has lost. If the
// process ends between these two steps, a later Learn finds what the ENI still has.
//
// Most ENIs have nothing to release. To find these ENIs without a new read of the registry, releaseFrom first calls
// pick with the state s, which may be some moments old.
//
// releaseFrom holds the lock "grow". If the answer to its call is lost, the SDK repeats the call. Without the lock, a
// growth could have got the same address again meanwhile, and the repeated call would take the address from a pod.
func (p *Node) releaseFrom(
	ctx context.Context, s *registry.State, id string, pick picker,
) (book.Releasable, error) {
	likely := pick(s, id, time.Now())
	if likely.Empty() {
		return book.Releasable{}, nil
	}
	if err := p.AwaitTurn(ctx, likely.Action()); err != nil {
		return book.Releasable{}, err
	}
	s, err := p.Registry.View()
	if err != nil || pick(s, id, time.Now()).Empty() {
		return book.Releasable{}, err
	}
	unlock, err := p.lockGrowth(ctx)
	if err != nil {
		return book.Releasable{}, err
	}
	defer unlock()
	var x book.Releasable
	err = p.Registry.Change(ctx, func(s *registry.State) {
		x = pick(s, id, time.Now())
		book.NoteRelease(s, id, x)
		book.Withdraw(s, id, x)
	})
	if err != nil || x.Empty() {
		return book.Releasable{}, err
	}
	return p.unassignAll(ctx, id, x)
}

// lockGrowth takes the lock "grow" for a collection. While EC2 throttles, a growth may hold the lock for minutes. So
// after some seconds, lockGrowth gives up with errGrowing, and the collection goes on with its other steps.
func (p *Node) lockGrowth(ctx context.Context) (unlock func(), err error) {
	unlock, err = p.lockSoon(ctx, "grow")
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = errGrowing
	}
	return unlock, err
}

// lockSoon waits at most ten seconds for a lock.
func (p *Node) lockSoon(ctx context.Context, name string) (unlock func(), err error) {
	const most = 10 * time.Second
	waiting, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return p.Registry.Lock(waiting, name)
}

// unlessGrowing returns err. For errGrowing, it returns nil, because the next collection does the work.
func unlessGrowing(err error) error {
	if errors.Is(err, errGrowing) {
		slog.Info(err.Error())
		return nil
	}
	return err
}

// errGrowing means that a growth is under way.
var errGrowing = errors.New("a growth is under way: this collection unassigns nothing more")

// releasablePrefixes chooses the prefixes that an ENI should lose. A /80 costs nothing, and stays as long as its ENI.
func (c *Collecting) releasablePrefixes(s *registry.State, id string, now time.Time) (x book.Releasable) {
	e := s.ENIs[id]
	var idle []registry.Prefix
	for _, b := range e.Prefixes {
		if b.CIDR.Addr().Is4() && c.isIdlePrefix(s, e, b, now) {
			idle = append(idle, b)
		}
	}
	if most := len(idle); most > 0 { // spareAddrs is slow, because it reads the addresses of all ENIs
		idle = idle[:min(most, c.spareAddrs(s, id, now)/book.BlockSize)]
	}
	for _, b := range idle {
		x.AddPrefix(s, b)
	}
	return x
}

// releasableAddrs chooses the IPv4 addresses that an ENI should lose. It never chooses the primary address.
func (c *Collecting) releasableAddrs(s *registry.State, id string, now time.Time) book.Releasable {
	e, x := s.ENIs[id], book.Releasable{Addrs: map[netip.Addr]time.Time{}}
	var idle []netip.Addr
	for _, a := range e.Addrs {
		if a.Is4() && a != e.Primary() && c.isIdle(s, e, a, now) {
			idle = append(idle, a)
		}
	}
	if most := len(idle); most > 0 {
		idle = idle[:min(most, c.spareAddrs(s, id, now))]
	}
	for _, a := range idle {
		x.Addrs[a], _ = s.Free.At(a)
	}
	return x
}

// spareAddrs returns how many addresses an ENI can lose. After that, the pool must still have the free addresses that
// it wants to keep ready. An ENI can lose all its addresses if its index is lower than interfaceIndex, or if an
// operator renews the ENI (drain-interface). An ENI that must keep its addresses, or that ADDs do not use, can lose
// none. An ENI in c.kept, which EC2 did not describe or detach, can also lose none.
func (c *Collecting) spareAddrs(s *registry.State, id string, now time.Time) int {
	e := s.ENIs[id]
	if !e.Serving || e.Foreign || e.TagsUnknown != "" || e.Keep || e.Draining || !e.Missed.IsZero() ||
		slices.Contains(c.kept, id) {
		return 0
	}
	spare := c.spareReady(s, e.Pool, now)
	if e.Closed() {
		spare = math.MaxInt
	}
	return max(min(spare, c.left()), 0)
}

// left returns how many more addresses the collection may unassign.
func (c *Collecting) left() int {
	switch {
	case c.stopped:
		return 0
	case c.Max < 0:
		return math.MaxInt
	}
	return c.Max - len(c.Unassigned) - book.BlockSize*len(c.Returned)
}

// unassignAll unassigns x from the ENI in one call, and returns what the ENI has lost. All addresses of x are of one
// family. The caller has withdrawn x from the registry, and holds the lock "grow". EC2 unassigns all of x or nothing.
// If another program has already unassigned a part of x, the call fails, and a second call unassigns the rest.
//
// If EC2 refuses the call, the addresses and prefixes go back into the registry. If the outcome is not known, the
// addresses and prefixes stay out of the registry until metadata shows them.
func (p *Node) unassignAll(ctx context.Context, id string, x book.Releasable) (gone book.Releasable, err error) {
	if err := p.Registry.Mark(known.ReleasedMark); err != nil {
		return book.Releasable{}, errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx),
			func(s *registry.State) { restoreAddrs(s, id, x) }))
	}
	rest, err := x, p.unassignOnce(ctx, id, x)
	if call.IsPartial(err) {
		rest, err = p.unassignRest(ctx, id, x, err)
	}
	if gone = x; err != nil {
		gone = x.Without(rest)
	}
	return gone, errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		// The registry may have been lost meanwhile, and another process may have learned x again.
		book.Withdraw(s, id, gone)
		book.EndRelease(s, gone)
		if aws.Undone(err) && !call.IsPartial(err) {
			restoreAddrs(s, id, rest)
		}
	}))
}

// restoreAddrs puts x back into the registry, because EC2 has not unassigned it.
func restoreAddrs(s *registry.State, id string, x book.Releasable) {
	book.Restore(s, id, x)
	book.GiveChosen(s, id)
	book.EndRelease(s, x)
}

// unassignOnce calls EC2 to unassign addresses or prefixes from an ENI. If EC2 throttles, unassignOnce records when
// this node may call the action again.
func (p *Node) unassignOnce(ctx context.Context, id string, x book.Releasable) error {
	var err error
	switch addrs, cidrs := x.List(), x.CIDRs(); {
	case len(cidrs) > 0:
		err = p.Cloud.UnassignPrefixes(ctx, id, cidrs...)
	case slices.ContainsFunc(addrs, netip.Addr.Is6):
		err = p.Cloud.UnassignIPv6(ctx, id, addrs, nil)
	default:
		err = p.Cloud.Unassign(ctx, id, addrs...)
	}
	if errors.Is(err, aws.ErrNotFound) {
		return nil // the ENI is gone, with all its addresses
	}
	if errors.Is(err, aws.ErrThrottled) {
		err = errors.Join(err, p.NotBefore(ctx, x.Action(), p.Backoff(0)))
	}
	return err
}

// unassignRest unassigns the part of x that EC2 still shows on the ENI, and returns this part. The argument refusal is
// the error of the first call, for all of x. An earlier attempt of the first call may have succeeded, although EC2's
// descriptions do not show the result yet. In this case, if the second call also fails, the outcome is not known, and
// the error contains refusal.
func (p *Node) unassignRest(ctx context.Context, id string, x book.Releasable, refusal error) (book.Releasable, error) {
	rest, err := p.stillOnENI(ctx, id, x, refusal)
	if err != nil {
		return rest, err
	}
	if err = p.unassignOnce(ctx, id, rest); err != nil && aws.MaybeDone(refusal) {
		err = errors.Join(err, refusal)
	}
	return rest, err
}

// stillOnENI returns the part of x that EC2 still shows on the ENI. If EC2 does not answer, it returns all of x, and an
// error that contains refusal, the error of the first call.
func (p *Node) stillOnENI(ctx context.Context, id string, x book.Releasable, refusal error) (book.Releasable, error) {
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil {
		return x, errors.Join(refusal, err)
	}
	var e aws.ENI
	if len(enis) > 0 {
		e = enis[0]
	}
	rest := x.Only(func(a netip.Addr) bool { return slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a) },
		func(c netip.Prefix) bool { return slices.Contains(e.Prefixes, c) })
	gone := x.Without(rest)
	slog.Warn("some addresses were not on the ENI any more: another program, or an earlier attempt, has "+
		"unassigned them",
		"eni", id, "addrs", gone.List(), "prefixes", gone.CIDRs())
	return rest, nil
}
