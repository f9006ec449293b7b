// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The process that asks EC2 waits for a burst to end, and hardly for what is none.
func TestGather(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name   string
		age    time.Duration // for which it waits already
		others int           // others that come,
		every  time.Duration // one after the other
		enough int
		want   time.Duration
	}{
		{"alone", 0, 0, 0, 100, 20 * ms},
		{"alone since the describes", 200 * ms, 0, 0, 100, 0},
		{"nearly alone", 0, 1, 30 * ms, 100, 20 * ms},
		{"burst", 0, 9, 7 * ms, 100, 9*7*ms + 50*ms},
		{"burst since the describes", 15 * ms, 4, 3 * ms, 100, 4*3*ms + 50*ms},
		{"burst of more than a call brings", 0, 99, 7 * ms, 30, 211 * ms}, // it has looked at 20, 64, 113 and 162 ms
		{"stream", 0, 999, 7 * ms, 1000, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(memory(t), "state")
			synctest.Test(t, func(t *testing.T) {
				p := &Pool{Pool: lease.Pool{Registry: must1(registry.Open(dir))(t), Policy: lease.Policy{Batch: 1}}}
				waits(t, p, 0)
				time.Sleep(tt.age)
				ctx, cancel := context.WithCancel(t.Context())
				go func() {
					for i := range tt.others {
						if sleep(ctx, tt.every, "") != nil {
							return
						}
						waits(t, p, i+1)
					}
				}()
				start := time.Now()
				must(t, p.gather(t.Context(), tt.enough, pauseAssign))
				took := time.Since(start)
				cancel()
				synctest.Wait()
				if took != tt.want {
					t.Errorf("gathered for %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// waits makes a pod a waiter.
func waits(t *testing.T, p *Pool, n int) {
	t.Helper()
	must(t, p.Registry.Change(context.Background(), func(s *registry.State) {
		s.Waiters[pod(n).Key.String()] = registry.Waiter{Since: time.Now(), Until: time.Now().Add(time.Minute)}
	}))
}

func must1[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// An ADD that fails wants nothing any more; one that was killed does until its deadline.
func TestWaiterEnds(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.sim.Fail("CreateNetworkInterface", "UnauthorizedOperation", 1)
	if _, err := w.acquire(1); err == nil {
		t.Fatal("no error")
	}
	if waiters := w.state().Waiters; len(waiters) != 0 {
		t.Errorf("after an error: %v", waiters)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.pool().Take(ctx, pod(2)); !errors.Is(err, lease.ErrNone) { // and is killed
		t.Fatal(err)
	}
	w.mustAcquire(3)
	if n := len(w.sim.ENIs()[1].Addrs); n != 2 {
		t.Errorf("%d addresses for an ADD and one that may still wait", n)
	}
}

// A growth is for the ADDs of its pool, and not for those of another.
func TestWaiterOfAnotherPool(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Pool = "b"
	for n := range 7 {
		if _, err := w.pool().Take(t.Context(), pod(n)); !lease.IsNone(err) {
			t.Fatal(err)
		}
	}
	w.policy.Pool = ""
	w.mustAcquire(9)
	if n := len(w.sim.ENIs()[1].Addrs); n != 1 {
		t.Errorf("%d addresses for one ADD", n)
	}
}

// While EC2 throttles, more ADDs come: what they want is in the call that succeeds.
func TestWaitersWhileThrottled(t *testing.T) {
	const action = "AssignPrivateIpAddresses"
	dir := filepath.Join(memory(t), "state")
	synctest.Test(t, func(t *testing.T) {
		p := &Pool{Pool: lease.Pool{Registry: must1(registry.Open(dir))(t), Policy: lease.Policy{Batch: 1}}, Cloud: aws.New(aws.Options{})}
		waits(t, p, 0)
		var wanted []int
		must(t, p.call(t.Context(), action, begins(registry.Intent{Action: action}), func(s *registry.State, _ string) (func(*registry.State), error) {
			wanted = append(wanted, p.want(s))
			if len(wanted) == 3 {
				return func(*registry.State) {}, nil
			}
			waits(t, p, len(wanted))
			return nil, &aws.Error{Action: action, Code: "RequestLimitExceeded"}
		}))
		if !slices.Equal(wanted, []int{1, 2, 3}) {
			t.Errorf("wanted %v", wanted)
		}
	})
}
