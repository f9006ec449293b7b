// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestNoADDSinceBoot: after a boot without an ADD, collections know from EC2's tags what they may release.
func TestNoADDSinceBoot(t *testing.T) {
	for _, tt := range []struct {
		name   string
		policy func(*lease.Policy)
		enis   int // ENIs that are left beside the boot ENI
	}{
		{"default", func(*lease.Policy) {}, 0},
		{"skipDeallocation", func(p *lease.Policy) { p.Keep = true }, 2},
		{"warm", func(p *lease.Policy) { p.Warm = registry.Warm{Min: 2} }, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			tt.policy(&w.policy)
			for n := range 12 {
				w.mustAcquire(n)
			}
			w.Lose()
			// A collection releases nothing before FreeAfter has passed since the boot.
			for _, wait := range []time.Duration{0, hour} {
				w.Age(wait)
				c := less.Collection{FreeAfter: time.Minute, Max: -1}
				if _, err := w.pool().Collect(t.Context(), c); err != nil {
					t.Fatal(err)
				}
				w.consistent()
				want := 2
				if wait > 0 {
					want = tt.enis
				}
				if n := len(w.EC2.ENIs()) - 1; n != want {
					t.Errorf("%v after the boot there are %d ENIs, want %d: %+v", wait, n, want, c)
				}
			}
		})
	}
}

// TestKeepWithoutEC2: a collection wants to delete an ENI without pods, but the collection's describes fail. New pods
// still get addresses of this ENI.
func TestKeepWithoutEC2(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.Batch = 4
		w.mustAcquire(1)
		w.end(1)
		time.Sleep(2 * time.Hour)
		for _, code := range []string{"Unavailable", "RequestLimitExceeded"} {
			w.EC2.Fail("DescribeNetworkInterfaces", code, always)
			ctx, cancel := context.WithTimeout(w.Context(), time.Second)
			if _, err := w.pool().Collect(ctx, less.Collection{FreeAfter: time.Hour, Max: -1}); err == nil {
				w.Fatalf("%s: the collection has done all", code)
			}
			cancel()
			if n := w.EC2.Asked(book.UnassignAction); n > 0 {
				w.Errorf("%s: EC2 was asked to unassign addresses of the ENI, %d times", code, n)
			}
			if got, err := w.acquire(2); err != nil {
				w.Errorf("%s: the pod has %v, %v", code, got.Addrs, err)
			}
			w.end(2)
			time.Sleep(2 * time.Hour)
		}
		w.EC2.Fail("DescribeNetworkInterfaces", "", 0)
		if c := w.collect(); len(c.Deleted) != 1 {
			w.Errorf("deleted %v afterwards", c.Deleted)
		}
	})
}

// TestKeepsNoMore: the key skipDeallocation is removed from the configuration. From the next ADD on, collections
// release free addresses and ENIs.
func TestKeepsNoMore(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Keep = true
	for n := range 12 {
		w.mustAcquire(n)
	}
	for n := range 12 {
		w.end(n)
	}
	w.Age(hour)
	if c := w.collect(); len(c.Unassigned)+len(c.Deleted) > 0 {
		t.Fatalf("with skipDeallocation, a collection has released %+v", c)
	}
	w.policy.Keep = false
	w.mustAcquire(20)
	w.Age(hour)
	w.collect()
	if left := w.State().ENIs; len(left) != 2 {
		t.Errorf("without skipDeallocation, these are left beside the boot ENI and that of the pod: %+v", left)
	}
	w.consistent()
}

// TestKeepsNoMoreOfRequests: the key skipDeallocation is removed, and no pod repeats an earlier request. A collection
// still deletes the ENI that was created for this request.
func TestKeepsNoMoreOfRequests(t *testing.T) {
	w := newCity(t, "m5.4xlarge")
	ask := func(n int, keep, annotation string) {
		t.Helper()
		_, err := w.ask(n, strings.Replace(allowAll, "{", `{"skipDeallocation": `+keep+", ", 1), annotation)
		must(t, err)
	}
	ask(0, "true", `[{"subnet": "subnet-db"}]`)
	w.end(0)
	ask(1, "false", "")
	w.Age(hour)
	if c := w.collect(); len(c.Deleted) != 1 {
		t.Errorf("deleted %v", c.Deleted)
	}
	w.consistent()
}

// TestKeepsNoMoreAndPassed: the key skipDeallocation is removed, and interfaceIndex is raised, so that the boot ENI
// serves no more pods. A collection releases all addresses of the boot ENI except the primary address.
func TestKeepsNoMoreAndPassed(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Keep, w.policy.MinIndex, w.policy.Batch = true, 0, 6
	w.mustAcquire(0)
	w.end(0)
	w.policy.Keep, w.policy.MinIndex, w.policy.Batch = false, 1, 1
	w.mustAcquire(1)
	w.Age(hour)
	w.collect()
	for _, e := range w.State().ENIs {
		if e.IsBoot() && len(e.Addrs) != 1 {
			t.Errorf("the boot ENI serves no pods any more, and has %v", e.Addrs)
		}
	}
	w.consistent()
}

// TestTagsComeLate: EC2's first answer about the tags of an ENI is an error. A later process gets the tags, and records
// them.
func TestTagsComeLate(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	id := w.EC2.ENIs()[1].ID
	w.end(1)
	w.Lose()
	w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", 2) // both attempts of the SDK
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := w.State().ENIs[id]; e.Managed || e.Serving {
		t.Fatalf("EC2 has not answered, and %s is known to be %+v", id, e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.pool().EndBegun(ctx); err != nil {
		t.Fatal(err)
	}
	if e := w.State().ENIs[id]; !e.Managed || !e.Serving || e.Keep {
		t.Errorf("%s is known to be %+v", id, e)
	}
}
