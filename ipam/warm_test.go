// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestFillYields: EC2 throttles the account. A node that only fills its pool asks once a minute, so that other nodes
// get what EC2 lets through. If an ADD of the node waits, or the node has no pods yet, the node asks without such
// pauses.
func TestFillYields(t *testing.T) {
	const patience = 4 * time.Minute
	for _, tt := range []struct {
		name        string
		pods        int
		waits       time.Duration // when an ADD begins to wait; 0: none does
		least, most int           // the number of calls; the SDK repeats each call once
	}{
		{"with pods", 1, 0, 4, 10},
		{"without pods", 0, 0, 70, 1000},
		{"an ADD waits", 1, 130 * time.Second, 30, 70},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(100) // so that there is an ENI
				if tt.pods == 0 {
					w.end(100)
				}
				w.policy.Warm = registry.Warm{Min: 4}
				const action = "AssignPrivateIpAddresses"
				w.EC2.Fail(action, throttling, -1)
				w.EC2.ResetCalls()
				if tt.waits > 0 {
					go func() {
						time.Sleep(tt.waits)
						w.Edit(func(s *registry.State) {
							s.Waiters["net/c/eth0"] = registry.Waiter{Since: time.Now(),
								Until: time.Now().Add(registry.MostWait)}
						})
					}()
				}
				ctx, cancel := context.WithTimeout(w.Context(), patience)
				defer cancel()
				if _, err := w.pool().Fill(ctx); !errors.Is(err, aws.ErrThrottled) {
					w.Errorf("it fails with %v", err)
				}
				if n := w.EC2.Asked(action); n < tt.least || n > tt.most {
					w.Errorf("it has asked %d times, want %d to %d", n, tt.least, tt.most)
				}
			})
		})
	}
}

// TestFillGivesWay: an ADD that comes while a pool is filled gets one of the first addresses, and does not wait for the
// last one.
func TestFillGivesWay(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Warm = registry.Warm{Min: 15} // more addresses than one ENI can have
	answered := make(chan error, 1)
	attached := 0
	w.EC2.OnChange(func(c ec2sim.Change) {
		if c.Kind != ec2sim.Attached {
			return
		}
		if attached++; attached == 1 {
			p := w.pool()
			go func() {
				_, err := p.Acquire(t.Context(), pod(1))
				answered <- err
			}()
			for len(w.State().Waiters) == 0 {
				runtime.Gosched()
			}
			return
		}
		select {
		case err := <-answered:
			must(t, err)
		case <-time.After(5 * time.Second):
			t.Error("the ADD has no answer, and the first ENI has ten addresses")
		}
	})
	if n, err := w.pool().Fill(t.Context()); err != nil || n < w.policy.Warm.Min {
		t.Errorf("%d addresses are free: %v", n, err)
	}
	if attached != 2 {
		t.Errorf("%d ENIs were attached", attached)
	}
	w.consistent()
}

// TestFillGivesWayToOtherPool: while EC2 throttles a Fill, an ADD of another pool does not wait.
func TestFillGivesWayToOtherPool(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.cloud.Jitter = func(d time.Duration) time.Duration { return d / 100 }
	w.mustAcquire(1) // so that there is an ENI
	w.EC2.Fail("AssignPrivateIpAddresses", throttling, -1)
	ctx, ends := context.WithCancel(t.Context())
	w.policy.Warm = registry.Warm{Min: 4}
	p, done := w.pool(), make(chan error)
	go func() {
		_, err := p.Fill(ctx)
		done <- err
	}()
	for len(w.State().NotBefore) == 0 {
		runtime.Gosched()
	}
	w.policy.Pool, w.policy.Warm, w.policy.Timeout = "b", registry.Warm{}, 10*time.Second
	if _, err := w.acquire(2); err != nil {
		t.Error(err)
	}
	ends()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it fails with %v", err)
	}
}
