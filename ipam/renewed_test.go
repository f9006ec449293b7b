// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestRenewed: an operator renews an ENI. Its pods keep their addresses, but new pods get addresses of another ENI.
// After its last pod, a collection deletes the ENI, also with skipDeallocation, and also if the pool then has no free
// address.
func TestRenewed(t *testing.T) {
	for name, policy := range map[string]func(*lease.Policy){
		"default":          func(*lease.Policy) {},
		"skipDeallocation": func(p *lease.Policy) { p.Keep = true },
		"warm":             func(p *lease.Policy) { p.Warm = registry.Warm{Min: 6} },
		"prefixes":         func(p *lease.Policy) { p.Prefixes = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.2xlarge", 20)
			w.policy.Batch = 4
			policy(&w.policy)
			first, err := w.acquire(1)
			must(t, err)
			w.mustAcquire(2)
			retire := func(yes bool) {
				w.Edit(func(s *registry.State) {
					s.Edit(first.ID, func(e *registry.ENI) { e.Retired = yes })
				})
			}
			retire(true)
			if again, err := w.acquire(1); err != nil || again.ID != first.ID || again.Addrs[0] != first.Addrs[0] {
				t.Errorf("the same ADD again has %v of %s, %v", again.Addrs, again.ID, err)
			}
			w.Age(10 * time.Minute)
			w.end(2)
			other, err := w.acquire(3)
			if err != nil || other.ID == first.ID {
				t.Errorf("a new pod has an address of %s, %v", other.ID, err)
			}
			w.Age(2 * time.Hour)
			if released := w.collect().Unassigned; w.policy.Keep && len(released) > 0 {
				t.Errorf("it has skipDeallocation, and has lost %v", released)
			}
			if _, stays := w.State().ENIs[first.ID]; !stays {
				t.Fatal("the ENI of a running pod is deleted")
			}
			w.end(1)
			w.Age(2 * time.Hour)
			done := w.collect()
			if _, stays := w.State().ENIs[first.ID]; stays {
				t.Errorf("the ENI stays without a pod: %+v", done)
			}
			w.consistent()
		})
	}
}

// TestRenewedUndone: an operator undoes the renewal of an ENI, and new pods get addresses of this ENI again.
func TestRenewedUndone(t *testing.T) {
	w := newWorld(t, "m5.2xlarge", 20)
	w.policy.Batch = 4
	first, err := w.acquire(1)
	must(t, err)
	for _, retired := range []bool{true, false} {
		w.Edit(func(s *registry.State) {
			s.Edit(first.ID, func(e *registry.ENI) { e.Retired = retired })
		})
		if _, on := lease.Candidates(w.State(), w.policy, time.Now()); (len(on) == 0) != retired {
			t.Errorf("retired %v: a new pod would get %v", retired, on)
		}
	}
}
