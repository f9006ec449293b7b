// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
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

// HasFree reports whether the pool has free addresses for an ADD. A growth that has failed may have got addresses,
// because it first finishes the calls of an interrupted growth.
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

// wantedAddrs returns the number of addresses that a growth must ask for. This is one address for each ADD that waits
// or will be repeated, plus a reserve, but at least ipBatchSize. The reserve is the larger of warm.min and the number
// of cooling addresses. If maxPods allows only a few further pods, the reserve and the batch are smaller. If
// ipBatchSize is 0, a growth asks for as many addresses as an ENI can have. A growth for one pod asks for one address.
//
// Cooling addresses show that pods are being replaced. Without a reserve for the next pods, a rolling update would cost
// as many calls as the node has pods.
func (p *Node) wantedAddrs(s *registry.State) int {
	if p.isForOnePod() {
		return 1
	}
	if p.Policy.Batch == 0 {
		room := max(s.Instance.IPv4PerENI, 1)
		if p.usesPrefixes(s, lease.IPv4) {
			room *= book.BlockSize
		}
		return room
	}
	pods := p.pendingADDs(s)
	n := min(max(pods+p.Policy.Warm.Min, pods+p.coolingAddrs(s), p.Policy.Batch), p.Policy.More(s))
	return max(n, pods, 1)
}

// isForOnePod reports whether a growth is for only one pod, because this pod has chosen addresses or wants a whole ENI.
// Further addresses could take the room of the chosen addresses, and no other pod gets an address of a whole ENI.
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

// wantedForNewENI does what wantedAddrs does, for a new ENI. A new ENI costs three calls that change EC2. So the ENI
// gets addresses for a quarter more pods than the pool will have when the waiting ADDs are done.
func (p *Node) wantedForNewENI(s *registry.State) int {
	n := p.wantedAddrs(s)
	if p.isForOnePod() {
		return n
	}
	more := p.pendingADDs(s)
	return max(n, min(more+(more+p.podCount(s))/4, p.Policy.More(s)))
}

// A pause has the shortest and the longest time for which a growth waits for the next ADD of a burst. Between these
// limits, a growth waits longer if the ADDs come more slowly.
type pause struct{ least, most time.Duration }

// The pauses of gatherADDs. A new ENI takes seconds, so a longer wait for the ADDs of a slow burst makes little
// difference.
var (
	pauseAssign = pause{50 * time.Millisecond, 50 * time.Millisecond}
	pauseENI    = pause{150 * time.Millisecond, 300 * time.Millisecond}
)

// burstPause returns how long a growth waits for the next ADD of a burst: eight times the average time between two
// ADDs, within the limits. If ADDs come at random times, the growth misses only one ADD of 3000.
func (p pause) burstPause(average time.Duration) time.Duration {
	return min(max(p.least, 8*average), p.most)
}

// gatherADDs waits until all ADDs of a burst have come, before the caller asks EC2. An ADD that comes later costs
// another call, which takes some 100 ms, and counts against the rate limit of the whole account.
//
// gatherADDs returns when no ADD has come for the time of burstPause. The argument enough is the number of addresses
// that one call can bring. gatherADDs also returns when the waiting ADDs want this number. gatherADDs waits at most a
// second, because the creation of an ENI takes longer anyway. A single ADD waits for 10 ms, including the time that it
// has already waited.
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
