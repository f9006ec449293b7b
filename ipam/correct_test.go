// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// byHand returns an EC2 client for changes by an operator. The registry does not have these changes.
func (w *world) byHand() *aws.Client { return aws.New(w.cloud) }

// collect runs a collection with FreeAfter one hour. Without arguments, the collection does not know the conflists.
func (w *world) collect(conflists ...lease.Policy) less.Report {
	w.Helper()
	c := less.Collection{FreeAfter: time.Hour, Max: -1, Conflists: conflists}
	done, err := w.pool().Collect(w.Context(), c)
	if err != nil {
		w.Error(err)
	}
	return done
}

// threePods gives the node an ENI with three running pods, and returns the ENI and the addresses of the pods. The
// addresses are ten minutes old, so they do not count as new.
func (w *world) threePods() (eni string, addrs []netip.Addr) {
	w.Helper()
	w.policy.Batch = 4
	for n := range 3 {
		addrs = append(addrs, w.mustAcquire(n))
	}
	eni = w.EC2.ENIs()[1].ID
	w.Age(10 * time.Minute)
	return eni, addrs
}

// TestUnassignedByHand: an operator unassigns the address of a pod. The lease stays until the pod ends, and then no pod
// gets the address.
func TestUnassignedByHand(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	eni, addrs := w.threePods()
	a := addrs[1]
	must(t, w.byHand().Unassign(t.Context(), eni, a))
	w.collect()
	if l, leased := w.State().Leases.At(a); !leased || l.Key != pod(1).Key || l.ENI != eni {
		t.Errorf("the lease of %s: %+v", a, l)
	}
	w.noneElsewhere()
	w.end(1)
	w.consistent()
	w.Age(10 * time.Minute)
	w.policy.Batch = 10
	for n := 3; n < 11; n++ {
		if b := w.mustAcquire(n); b == a {
			t.Errorf("pod %d has %s, which is on no ENI", n, a)
		}
	}
	w.consistent()
}

// TestFreeUnassignedByHand: an operator unassigns a free address and a free prefix. The next collection removes both
// from the registry, with one describe.
func TestFreeUnassignedByHand(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	eni := w.idle()
	e := w.EC2.ENIs()[1]
	must(t, w.byHand().Unassign(t.Context(), eni, e.Addrs[2]))
	must(t, w.byHand().UnassignPrefixes(t.Context(), eni, e.Prefixes[0]))
	w.EC2.ResetCalls()
	c := less.Collection{FreeAfter: hour, Max: 0}
	must1(w.pool().Collect(t.Context(), c))(t)
	w.noneElsewhere()
	w.consistent()
	if n := w.EC2.Asked("DescribeNetworkInterfaces"); n != 1 {
		t.Errorf("EC2 was asked %d times, want once", n)
	}
	w.EC2.ResetCalls()
	must1(w.pool().Collect(t.Context(), c))(t)
	if calls := w.EC2.Calls(); len(calls) != 0 {
		t.Errorf("asked again: %v", calls)
	}
}

// TestPartOfBatchIsGone: a collection releases addresses and prefixes, and an operator has already unassigned some of
// them. The collection still releases the rest.
func TestPartOfBatchIsGone(t *testing.T) {
	for _, what := range []string{"an address", "a prefix", "all addresses"} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			eni := w.idle()
			if what == "a prefix" {
				w.moreOn(eni)
				w.Age(hour)
			}
			e := w.EC2.ENIs()[1]
			defer w.Lie(ec2sim.FreezeENI(eni))() // metadata hides the loss, so the collection releases before it asks
			switch what {
			case "a prefix":
				must(t, w.byHand().UnassignPrefixes(t.Context(), eni, e.Prefixes[0]))
			case "an address":
				must(t, w.byHand().Unassign(t.Context(), eni, e.Addrs[1]))
			default:
				must(t, w.byHand().Unassign(t.Context(), eni, e.Addrs[1:]...))
			}
			c := less.Collection{FreeAfter: time.Minute, Max: -1}
			done := must1(w.pool().Collect(t.Context(), c))(t)
			if addrs, prefixes := w.has(eni); addrs != 1 || prefixes != 0 || len(done.Unassigned) != 3 ||
				len(done.Returned) != len(e.Prefixes) {
				t.Errorf("EC2 has %d addresses and %d prefixes; released: %v and %v", addrs, prefixes, done.Unassigned,
					done.Returned)
			}
			w.noneElsewhere()
			w.consistent()
		})
	}
}

// TestUnassignedByHandComesBack: EC2 gives a new ENI an address that an operator has unassigned from another ENI. The
// registry still has the address on the other ENI, so the ADD fails. The next ADD learns the change from EC2, and
// succeeds.
func TestUnassignedByHandComesBack(t *testing.T) {
	w := newWorld(t, "m5.large", 28)
	const most = 10 // addresses of an ENI; the subnet has eleven
	w.policy.Batch = most
	for n := range most {
		w.mustAcquire(n)
	}
	w.Age(hour)
	w.collect() // this collection looks for unfinished calls, and finds none
	e := w.EC2.ENIs()[1]
	must(t, w.byHand().Unassign(t.Context(), e.ID, e.Addrs[6:]...))
	w.policy.Batch = 5
	if _, err := w.acquire(most); err == nil || !strings.Contains(err.Error(), e.ID+" has this address") {
		t.Errorf("the ADD whose ENI has them: %v", err)
	}
	w.mustAcquire(most + 1)
	w.noneElsewhere()
	w.consistent()
	w.noneLeaked()
}

// TestSilenceIsNoProof: if metadata does not show an ENI or an address, this proves nothing. The same is true if EC2
// does not show an address that it has just assigned.
func TestSilenceIsNoProof(t *testing.T) {
	t.Run("metadata", func(t *testing.T) {
		w := newWorld(t, "m5.large", 20)
		eni := w.idle()
		before := w.State().ENIs[eni]
		defer w.Lie(ec2sim.ForgetENI(eni))()
		must1(w.pool().Collect(t.Context(), less.Collection{FreeAfter: hour, Max: 0}))(t)
		if e := w.State().ENIs[eni]; !slices.Equal(e.Addrs, before.Addrs) || len(e.Prefixes) != len(before.Prefixes) {
			t.Errorf("the registry has %+v, and had %+v", e, before)
		}
	})
	t.Run("EC2, which is behind", func(t *testing.T) {
		w := newWorld(t, "m5.large", 20)
		eni := w.idle()
		old := w.EC2.ENIs()[1]
		p := w.pool()
		w.policy.Batch, w.policy.Prefixes = 2, false
		w.moreOn(eni)
		w.policy.Prefixes = true
		w.moreOn(eni)
		stale := aws.ENI{ID: eni, Instance: w.ID, Addrs: old.Addrs, Prefixes: old.Prefixes}
		before := w.State().ENIs[eni]
		must(t, p.Registry.Change(t.Context(), func(s *registry.State) {
			known.Agree(s, []aws.ENI{stale}, time.Now())
		}))
		if e := w.State().ENIs[eni]; !slices.Equal(e.Addrs, before.Addrs) || len(e.Prefixes) != 2 {
			t.Errorf("the registry has %+v, and had %+v", e, before)
		}
		w.Age(time.Minute)
		must(t, p.Registry.Change(t.Context(), func(s *registry.State) {
			known.Agree(s, []aws.ENI{stale}, time.Now())
		}))
		if e := w.State().ENIs[eni]; len(e.Addrs) != len(old.Addrs) || len(e.Prefixes) != len(old.Prefixes) {
			t.Errorf("the registry has %+v, and EC2 said %+v", e, stale)
		}
	})
}

// TestGrowthLooks: a growth that describes the node's ENIs also learns which addresses have left these ENIs.
func TestGrowthLooks(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	eni, addrs := w.threePods()
	must(t, w.byHand().Unassign(t.Context(), eni, addrs[1]))
	w.EC2.FailAs("AssignPrivateIpAddresses", "PrivateIpAddressLimitExceeded", "", 1)
	w.policy.Batch = 1
	w.mustAcquire(3)
	w.mustAcquire(4)
	if id, _ := w.State().ENIOf(addrs[1]); id != "" {
		t.Errorf("the registry has %s on %s", addrs[1], id)
	}
}

// TestLostAddressKeepsENI: a pod that has lost its address still has its slave of the ENI's link, so the ENI stays.
func TestLostAddressKeepsENI(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	eni, addrs := w.threePods()
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a != w.EC2.ENIs()[1].Addrs[0] })
	for n := range 3 {
		if n != i {
			w.end(n)
		}
	}
	w.runPod(addrs[i])
	w.Age(2 * hour)
	must(t, w.byHand().Unassign(t.Context(), eni, addrs[i]))
	w.collect()
	w.collect()
	if n := len(w.EC2.ENIs()); n != 2 {
		t.Errorf("%d ENIs: that of the pod is deleted", n)
	}
}

// TestUsedWithoutLease: an address in a namespace gets a lease, even if metadata does not answer.
func TestUsedWithoutLease(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	w.mustAcquire(1)
	w.collect() // compares the new registry with EC2
	e := w.EC2.ENIs()[1]
	a := e.Addrs[2]
	w.runPod(a)
	defer w.Lie(ec2sim.Unavailable())()
	w.collect()
	if l, leased := w.State().Leases.At(a); !leased || l.Key != (registry.Key{}) || !l.Bound {
		t.Errorf("%s is in a namespace; its lease: %+v (%v)", a, l, leased)
	}
	for n := 2; n < 4; n++ {
		if b := w.mustAcquire(n); b == a {
			t.Errorf("pod %d has %s, too", n, a)
		}
	}
}

// TestOriginalStray: the original plugin's registry has an address that has left its ENI. A collection removes this
// address.
func TestOriginalStray(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	_, addrs := w.threePods()
	for n := range addrs {
		w.end(n)
	}
	stray := netip.MustParseAddr("100.77.0.200")
	w.Lose()
	must(t, os.Mkdir(w.Dir, 0o700))
	released := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
	file := fmt.Sprintf(`{"schema_version":1,"ips":{%q:{"released_on":%q},%q:{"released_on":"2026-01-02T03:04:05Z"}}}`,
		addrs[1], released.Format(time.RFC3339), stray)
	must(t, os.WriteFile(filepath.Join(w.Dir, "registry.json"), []byte(file), 0o600))
	w.collect()
	s := w.State()
	if s.Free.Has(stray) {
		t.Errorf("%s is free, and on no ENI", stray)
	}
	if since, free := s.Free.At(addrs[1]); !free || !since.Equal(released) {
		t.Errorf("%s is free since %v (%v), and the original says since %v", addrs[1], since, free, released)
	}
	w.consistent()
}
