// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// CountWaiting counts the ADDs that wait for an address of the pool. It also returns the times when the first and the
// last of these ADDs began to wait.
func (p *Node) CountWaiting(s *registry.State) (n int, first, last time.Time) {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Pool != p.Policy.Waits() || !w.Until.After(now) {
			continue
		}
		n++
		if w.Since.After(last) {
			last = w.Since
		}
		if first.IsZero() || w.Since.Before(first) {
			first = w.Since
		}
	}
	return n, first, last
}

// HasFree reports whether the pool has free addresses for an ADD. It may return true even after a growth that has
// failed. Before that growth failed, it may have finished the calls of an interrupted growth, and so got addresses.
func (p *Node) HasFree() bool {
	s, err := p.Registry.View()
	if err != nil {
		return false
	}
	_, addrs := lease.Candidates(s, p.Policy, time.Now())
	return len(addrs) > 0
}

// pendingADDs counts the ADDs that wait, and the ADDs that have given up but that the runtime will repeat.
func (p *Node) pendingADDs(s *registry.State) int {
	n, _, _ := p.CountWaiting(s)
	for _, w := range s.GaveUp {
		if w.Pool == p.Policy.Waits() && time.Since(w.Until) <= lease.Returns {
			n++
		}
	}
	return n
}

// wantedAddrs returns the number of addresses that a growth must ask for. If isForOnePod returns true, the growth asks
// for one address. Any other growth asks for one address for each ADD that waits or will be repeated, plus a reserve.
// The reserve is the larger of two numbers: the free addresses that the pool wants to keep ready, and the cooling
// addresses. A growth asks for at least ipBatchSize addresses. But if the node may get fewer further pods because of
// maxPods, that smaller number replaces the reserve and ipBatchSize. If ipBatchSize is 0, a growth asks for as many
// addresses as an ENI can have.
//
// Cooling addresses show that pods are being replaced, and that more pods will be replaced soon. Without a reserve for
// them, a rolling update would cost as many calls as the node has pods. The whole account shares the rate limit of
// these calls.
func (p *Node) wantedAddrs(s *registry.State) int {
	if p.isForOnePod() {
		return 1
	}
	if p.Policy.Batch == 0 {
		return max(s.Instance.IPv4PerENI, 1)
	}
	pods := p.pendingADDs(s)
	n := min(max(pods+p.Policy.Warm.Min, pods+p.coolingAddrs(s), p.Policy.Batch), p.Policy.More(s))
	return max(n, pods, 1)
}

// isForOnePod reports whether a growth is for one pod alone, because the pod has chosen addresses, or wants a whole
// ENI. Chosen addresses need room on their ENI, and further addresses could take this room. For a whole ENI, further
// addresses would be useless, because no other pod gets them.
func (p *Node) isForOnePod() bool { return p.Policy.Choice.Exclusive || len(p.Policy.Choice.Addrs) > 0 }

// coolingAddrs counts the pool's addresses that still cool.
func (p *Node) coolingAddrs(s *registry.State) (n int) {
	after := time.Now().Add(-p.Policy.ReuseWait)
	for a, since := range s.Free.All() {
		if since.After(after) && p.isPodAddr(s, a) {
			n++
		}
	}
	return n
}

// podCount counts the pods of the pool.
func (p *Node) podCount(s *registry.State) (n int) {
	for a := range s.Leases.Keys() {
		if p.isPodAddr(s, a) {
			n++
		}
	}
	return n
}

// isPodAddr reports whether an address is on an ENI of the pool, and belongs to the pool's first family. Each pod has
// exactly one address of this family, so podCount counts these addresses to count the pods.
func (p *Node) isPodAddr(s *registry.State, a netip.Addr) bool {
	id, e := s.ENIOf(a)
	return id != "" && e.Pool == p.Policy.Pool && nl.FamilyOf(a) == p.Policy.Families[0]
}

// wantedForNewENI does what wantedAddrs does, for a new ENI. A new ENI costs three calls that change something in EC2.
// So the new ENI gets addresses for a quarter more pods than the pool will have when the waiting ADDs are done.
func (p *Node) wantedForNewENI(s *registry.State) int {
	n := p.wantedAddrs(s)
	if p.isForOnePod() {
		return n
	}
	more := p.pendingADDs(s)
	return max(n, min(more+(more+p.podCount(s))/4, p.Policy.More(s)))
}

// A pause limits how long a growth waits for the next ADD of a burst. It has the shortest and the longest time. If no
// ADD comes while the growth waits, the burst counts as ended. Between the two limits, the growth waits longer if the
// ADDs come more slowly.
type pause struct{ least, most time.Duration }

// The pauses of gatherADDs. A new ENI takes seconds, so a longer wait for the ADDs of a slow burst makes little
// difference.
var (
	pauseAssign = pause{50 * time.Millisecond, 50 * time.Millisecond}
	pauseENI    = pause{150 * time.Millisecond, 300 * time.Millisecond}
)

// burstPause returns how long a growth waits for the next ADD of a burst. The argument average is the average time
// between two ADDs of the burst. Within the limits of the pause, burstPause returns eight times this average. If ADDs
// come at random times, the growth then misses only one ADD of 3000.
func (p pause) burstPause(average time.Duration) time.Duration {
	return min(max(p.least, 8*average), p.most)
}

// gatherADDs waits until all ADDs of a burst have come, before the caller asks EC2. An ADD that comes later costs
// another call, which takes some 100 ms, and counts against the rate limit of the whole account.
//
// gatherADDs returns when no ADD has come for the time that burstPause returns. The argument enough is the number of
// addresses that one call can bring. gatherADDs also returns when the waiting ADDs want at least this number. It
// returns after a second at the latest, because the creation of an ENI takes longer than a second anyway. A single ADD
// waits for 10 ms. If this ADD has already waited for 10 ms, for example for a describe call, gatherADDs returns at
// once.
func (p *Node) gatherADDs(ctx context.Context, enough int, pause pause) error {
	const alone, most = 10 * time.Millisecond, time.Second
	for began := time.Now(); ; {
		s, err := p.Registry.View()
		if err != nil {
			return err
		}
		n, first, last := p.CountWaiting(s)
		quiet := alone
		if n > 1 {
			quiet = pause.burstPause(last.Sub(first) / time.Duration(n-1))
		}
		d := min(quiet-time.Since(last), most-time.Since(began))
		if d <= 0 || p.wantedAddrs(s) >= enough || call.Sleep(ctx, d, "") != nil {
			return nil // if the caller has no more time, its next step fails
		}
	}
}
