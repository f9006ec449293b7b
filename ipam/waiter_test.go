// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		must(t, err)
		return v
	}
}

// TestWaiterEnds: if EC2 does not throttle, an ADD that has failed is no waiter any more. An ADD that was killed stays
// a waiter until its deadline.
func TestWaiterEnds(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", 1)
	if _, err := w.acquire(1); err == nil {
		t.Fatal("no error")
	}
	if waiters := w.State().Waiters; len(waiters) != 0 {
		t.Errorf("after an error: %v", waiters)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.pool().Take(ctx, pod(2)); !errors.Is(err, lease.ErrNone) { // the ADD is then killed
		t.Fatal(err)
	}
	w.Forgive()
	w.mustAcquire(3)
	if n := len(w.EC2.ENIs()[1].Addrs); n != 2 {
		t.Errorf("%d addresses for an ADD and one that may still wait", n)
	}
}

// TestGaveUp: a runtime repeats an ADD that has given up while EC2 throttled. So a growth for another ADD also gets an
// address for the ADD that has given up. This ends when as many ADDs have come as had given up, or when the time for
// their repetition is over.
func TestGaveUp(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	givesUp := func(pool string, pods ...int) {
		t.Helper()
		w.policy.Pool = pool
		defer func() { w.policy.Pool = "" }()
		p := w.pool()
		for _, n := range pods {
			if _, err := p.Take(t.Context(), pod(n)); !lease.IsNone(err) {
				t.Fatal(err)
			}
		}
		for _, n := range pods {
			must(t, p.GiveUp(t.Context(), pod(n)))
			must(t, p.End(t.Context(), pod(n).Key)) // as runtimes do
		}
	}
	throttles := func(d time.Duration) {
		t.Helper()
		w.Edit(func(s *registry.State) {
			clear(s.NotBefore)
			if d > 0 {
				s.NotBefore["AttachNetworkInterface"] = time.Now().Add(d)
			}
		})
	}
	want := func(addrs int, pods ...int) {
		t.Helper()
		if n := len(w.EC2.ENIs()[1].Addrs); n != addrs {
			t.Errorf("the ENI has %d addresses, want %d", n, addrs)
		}
		var keys []string
		for _, n := range pods {
			keys = append(keys, pod(n).Key.String())
		}
		if got := slices.Sorted(maps.Keys(w.State().GaveUp)); !slices.Equal(got, keys) {
			t.Errorf("given up: %v, want %v", got, keys)
		}
	}

	givesUp("", 8, 9) // EC2 does not throttle
	throttles(registry.MostBackoff)
	givesUp("", 1, 2, 3)
	givesUp("b", 4)
	throttles(0)
	w.mustAcquire(2)
	want(3, 1, 3, 4)
	w.mustAcquire(5) // counts as pod 1, which a runtime repeats with another container ID
	w.mustAcquire(6) // counts as pod 3
	want(3, 4)

	throttles(registry.MostBackoff)
	givesUp("", 7, 8, 9)
	throttles(0)
	w.Edit(func(s *registry.State) {
		for key, g := range s.GaveUp {
			g.Until = g.Until.Add(-lease.Returns)
			s.GaveUp[key] = g
		}
	})
	w.mustAcquire(1) // the node gets no addresses for the ADDs that have not come back in time
	want(4)
}

// TestGaveUpLate: the time of an ADD is over, and another ADD removes it from the waiters. The first ADD then gives up,
// and the registry still records this.
func TestGaveUpLate(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	p := w.pool()
	takes := func(ctx context.Context, n int) {
		t.Helper()
		if _, err := p.Take(ctx, pod(n)); !lease.IsNone(err) {
			t.Fatal(err)
		}
	}
	must(t, p.Registry.Change(t.Context(), func(s *registry.State) {
		s.NotBefore["AttachNetworkInterface"] = time.Now().Add(registry.MostBackoff)
	}))
	takes(t.Context(), 1)
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	takes(late, 2)
	<-late.Done()
	takes(t.Context(), 1) // the ADD has its turn
	must(t, p.GiveUp(t.Context(), pod(2)))
	s := w.State()
	if _, found := s.GaveUp[pod(2).Key.String()]; !found || len(s.GaveUp) != 1 || len(s.Waiters) != 1 {
		t.Errorf("given up: %v, waiters %v", s.GaveUp, s.Waiters)
	}
}

// TestFreedWhileWaiting: the time of an ADD ends while another ADD asks EC2. The first ADD takes an address that a DEL
// has freed meanwhile.
func TestFreedWhileWaiting(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.ReuseWait = 0
	freed := w.mustAcquire(1)
	unlock, err := w.pool().Registry.Lock(t.Context(), "grow") // like an ADD that gets no answer of EC2
	must(t, err)
	defer unlock()
	ctx, ends := context.WithCancel(t.Context())
	p, done := w.pool(), make(chan error)
	go func() {
		a, err := p.Acquire(timed{ctx}, pod(2))
		if err == nil && a.Addrs[0] != freed {
			err = fmt.Errorf("the pod has %v, want %v", a.Addrs, freed)
		}
		done <- err
	}()
	for len(w.State().Waiters) == 0 {
		runtime.Gosched()
	}
	w.end(1)
	ends()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if s := w.State(); len(s.Waiters) > 0 {
		t.Errorf("waiters %v", s.Waiters)
	}
}

// A timed context has a deadline, which comes when the context is canceled.
type timed struct{ context.Context }

func (c timed) Err() error {
	if c.Context.Err() != nil {
		return context.DeadlineExceeded
	}
	return nil
}

// TestWaiterOfAnotherPool: a growth is only for the ADDs of its own pool.
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
	if n := len(w.EC2.ENIs()[1].Addrs); n != 1 {
		t.Errorf("%d addresses for one ADD", n)
	}
}
