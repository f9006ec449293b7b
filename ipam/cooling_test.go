// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// cooledFor runs a collection with FreeAfter 15 minutes. The argument wait is reuseIPWait of all pools.
func (w *world) cooledFor(wait time.Duration) less.Report {
	w.Helper()
	return must1(w.pool().Collect(w.Context(), less.Collection{FreeAfter: 15 * time.Minute, Max: -1,
		ReuseWait: func(string) time.Duration { return wait }}))(w)
}

// TestCollectCooling checks that a collection releases no cooling address, and no prefix or ENI with a cooling address,
// even after FreeAfter. EC2 could give a released address to another pod at once.
func TestCollectCooling(t *testing.T) {
	for name, tt := range map[string]struct {
		running  int // pods that do not end
		prefixes bool
	}{"address": {running: 1}, "prefix": {17, true}, "ENI": {}, "ENI with prefixes": {0, true}} {
		for after, want := range map[time.Duration]bool{59 * time.Minute: false, 61 * time.Minute: true} {
			t.Run(fmt.Sprint(name, " after ", after), func(t *testing.T) {
				w := newWorld(t, "m5.large", 24)
				w.policy.Prefixes = tt.prefixes
				for n := range tt.running + 1 {
					w.mustAcquire(n)
				}
				w.Age(10 * time.Hour)
				w.end(tt.running)
				w.Age(after)
				r := w.cooledFor(time.Hour)
				if got := len(r.Unassigned)+len(r.Returned)+len(r.Deleted) > 0; got != want {
					t.Errorf("released: %v, want %v: %+v", got, want, r)
				}
			})
		}
	}
}

// TestCollectWarmCools: seven pods have just ended, and the pool wants three warm addresses. The collection keeps the
// three free addresses that do not cool.
func TestCollectWarmCools(t *testing.T) {
	for _, wait := range []time.Duration{time.Minute, time.Hour} {
		w := newWorld(t, "m5.4xlarge", 24)
		w.policy.ReuseWait, w.policy.Warm = wait, registry.Warm{Min: 3}
		for n := range 8 {
			w.mustAcquire(n)
		}
		must1(w.pool().Fill(w.Context()))(w)
		w.Age(20 * time.Minute)
		for n := range 7 {
			w.end(n)
		}
		w.Age(wait / 2)
		r := w.cooledFor(wait)
		if ready := w.pool().Ready(w.State(), time.Now()); ready != 3 {
			t.Errorf("reuseIPWait %v: %d addresses are ready after the collection: %+v", wait, ready, r)
		}
	}
}

// TestCollectNeverUsed: no pod has had an address, so the address need not cool. A collection releases it after
// FreeAfter.
func TestCollectNeverUsed(t *testing.T) {
	w := newWorld(t, "m5.large", 24)
	w.policy.Batch = 3
	w.mustAcquire(0)
	w.Age(20 * time.Minute)
	if r := w.cooledFor(24 * time.Hour); len(r.Unassigned) != 2 {
		t.Errorf("the collection has unassigned %v, want two addresses", r.Unassigned)
	}
}

// TestCollectPruned: two pods of a pool with IPv6 end. Then an ADD of another pool removes their two addresses from the
// registry, because a /80 has too many addresses. Still, no collection deletes the ENI before FreeAfter has passed, or
// before both addresses have cooled.
func TestCollectPruned(t *testing.T) {
	for after, want := range map[time.Duration]int{59 * time.Minute: 0, 61 * time.Minute: 1} {
		cools := func(string) time.Duration { return time.Hour }
		for name, what := range map[string]less.Collection{"free-after": {FreeAfter: time.Hour, Max: -1},
			"reuseIPWait": {FreeAfter: time.Minute, Max: -1, ReuseWait: cools}} {
			w := newWorld6(t, "m5.large")
			w.policy.Families = []lease.Family{lease.IPv6}
			w.mustAcquire(0)
			w.mustAcquire(1)
			w.Age(10 * time.Hour)
			w.end(0)
			w.end(1)
			w.Age(after)
			other := w.pool()
			other.Policy.Pool = "other"
			if _, err := other.Take(w.Context(), pod(9)); !errors.Is(err, lease.ErrNone) {
				t.Errorf("an ADD of another pool: %v", err)
			}
			if r := must1(w.pool().Collect(w.Context(), what))(w); len(r.Deleted) != want {
				t.Errorf("%s: %v after the end of the pods: %+v", name, after, r)
			}
		}
	}
}

// TestAssignUnanswered: EC2 assigns addresses or prefixes, and its answer is lost. No pod has had the new addresses, so
// the waiting ADD gets one at once, and the node asks EC2 for no more.
func TestAssignUnanswered(t *testing.T) {
	for _, prefixes := range []bool{false, true} {
		inBubble(t, "m5.large", func(w *world, _ *wires) {
			w.policy.Prefixes = prefixes
			n := 0
			for w.mustAcquire(n); w.pool().HasFree(); w.mustAcquire(n) {
				n++
			}
			w.EC2.ResetCalls()
			w.EC2.Script(book.AssignAction(lease.IPv4), ec2sim.DoneLost, ec2sim.Refused(throttling))
			w.mustAcquire(n + 1)
			w.wantWrites(map[string]int{book.AssignAction(lease.IPv4): 1})
			w.consistent()
		})
	}
}
