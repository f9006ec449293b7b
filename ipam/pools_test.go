// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestTwoPools: each pool has its own ENIs, with its own groups. No pod gets an address of another pool's ENI.
func TestTwoPools(t *testing.T) {
	w := newWorld(t, "m5.xlarge", 20)
	w.policy.Pools, w.policy.SecurityGroups = true, []string{"sg-1"}
	a := w.mustAcquire(1)
	other := w.policy
	other.Pool, other.SecurityGroups = "payments", []string{"sg-77"}
	w.policy, other = other, w.policy
	b := w.mustAcquire(2)
	w.end(2)
	w.policy = other
	w.end(1)
	w.Age(hour)
	enis := w.EC2.ENIs()
	if len(enis) != 3 || enis[1].SecurityGroups[0] != "sg-1" || enis[2].SecurityGroups[0] != "sg-77" ||
		enis[1].Tags[book.TagPool] != "default" || enis[2].Tags[book.TagPool] != "payments" {
		t.Fatalf("ENIs: %+v", enis)
	}
	// After a loss of the registry, the tags show the pool of each ENI.
	w.Lose()
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Age(hour)
	if again := w.mustAcquire(3); again != a {
		t.Errorf("default pool: got %s, want %s", again, a)
	}
	w.policy.Pool, w.policy.SecurityGroups = "payments", []string{"sg-77"}
	if again := w.mustAcquire(4); again != b {
		t.Errorf("pool payments: got %s, want %s", again, b)
	}
}

// TestForeignENI: the node leaves an ENI alone if its owner has tagged it no_manage, the tag of amazon-vpc-cni-k8s.
func TestForeignENI(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	id := w.attachForeign(map[string]string{"node.k8s.amazonaws.com/no_manage": "true"})
	a := w.mustAcquire(1)
	for _, e := range w.EC2.ENIs() {
		if e.ID == id && e.Addrs[0] == a {
			t.Errorf("pod has %s of the foreign ENI", a)
		}
	}
	w.end(1)
	w.Age(hour)
	c := less.Collection{FreeAfter: 1, Max: -1}
	if _, err := w.pool().Collect(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for _, e := range w.EC2.ENIs() {
		if e.ID == id && len(e.Addrs) != 4 {
			t.Errorf("the foreign ENI has %v now", e.Addrs)
		}
	}
}

// TestDetachedOfOtherPool: an operator detaches a new ENI before the node has seen its link. A growth of another pool
// asks EC2 about an unfinished call. The growth does not delete the detached ENI, because a pod has an address of this
// ENI. When the pod has ended, a collection deletes the ENI.
func TestDetachedOfOtherPool(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Pools = true
	w.mustAcquire(1)
	eni := w.EC2.ENIs()[1]
	w.byOperator(eni.ID)
	w.Edit(func(s *registry.State) {
		s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: "eni-00000000000000099", Since: time.Now()}
	})
	w.policy.Pool = "b"
	w.mustAcquire(2)
	if n := w.EC2.Asked("DeleteNetworkInterface"); n > 0 {
		t.Errorf("EC2 was asked to delete %s, of which a pod has %v: %v", eni.ID, eni.Addrs, w.EC2.Calls())
	}
	w.policy.Pool = ""
	w.end(1)
	w.Age(hour)
	if c := w.collect(); !slices.Equal(c.Deleted, []string{eni.ID}) {
		t.Errorf("a collection deleted %v, want %s", c.Deleted, eni.ID)
	}
}

// TestDetachedNoPlace: as TestDetachedOfOtherPool, for a growth of the ENI's own pool, which finds no free slot.
func TestDetachedNoPlace(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	eni := w.EC2.ENIs()[1]
	w.byOperator(eni.ID)
	for index := range 2 {
		w.attachAt(1 + index)
	}
	w.Edit(func(s *registry.State) {
		s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: "eni-00000000000000099", Since: time.Now()}
	})
	for n := range 15 {
		w.mustAcquire(2 + n)
	}
	if n := w.EC2.Asked("DeleteNetworkInterface"); n > 0 {
		t.Errorf("EC2 was asked to delete %s, of which a pod has %v: %v", eni.ID, eni.Addrs, w.EC2.Calls())
	}
}

// TestAbandonedInUse: a growth was killed when it had created an ENI. A growth of another pool tries to delete this
// ENI. EC2 refuses the first deletion, as if the ENI were in use. The next growth or collection deletes the ENI.
func TestAbandonedInUse(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Pools = true
	w.mustAcquire(1)
	stray := w.stray()
	w.EC2.Fail("DeleteNetworkInterface", "InvalidNetworkInterface.InUse", 1)
	w.policy.Pool = "b"
	w.mustAcquire(2)
	w.collect()
	if slices.ContainsFunc(w.EC2.ENIs(), func(e ec2sim.ENI) bool { return e.ID == stray }) {
		t.Errorf("%s is left behind: %v", stray, w.EC2.Calls())
	}
}

// TestRetired: the configuration no longer has a pool. When its pods have ended, a collection keeps none of its ENIs
// and addresses, and another pool gets the slot. The same is true of a pool that is derived from the removed pool.
func TestRetired(t *testing.T) {
	for _, pool := range []string{"db", "db/subnet-pod0"} {
		t.Run(pool, func(t *testing.T) { retiresPool(t, pool) })
	}
}

func retiresPool(t *testing.T, pool string) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Pools = true
	base := w.policy
	w.policy.Pool, w.policy.Keep, w.policy.Warm = pool, true, registry.Warm{Min: 3}
	w.mustAcquire(1)
	_, err := w.pool().Fill(t.Context())
	must(t, err)
	db := w.policy
	db.Pool = "db"
	removed, has := []lease.Policy{base}, []lease.Policy{base, db}
	w.policy = base
	w.mustAcquire(2)
	retire := func(conflists []lease.Policy) less.Report {
		w.Age(hour)
		return w.collect(conflists...)
	}
	if c := retire(removed); len(c.Unassigned)+len(c.Deleted) > 0 {
		t.Errorf("while the pool has a pod, these were released: %+v", c)
	}
	w.end(1)
	if c := retire(has); len(c.Unassigned)+len(c.Deleted) > 0 {
		t.Errorf("while the configuration has the pool, these were released: %+v", c)
	}
	w.Lose() // the tags of the ENI let no collection release anything before an ADD
	w.mustAcquire(3)
	if c := retire(removed); len(c.Deleted) != 1 {
		t.Errorf("after the pool was removed, a collection has released %+v", c)
	}
	w.consistent()
}

// TestAssignMakesNoRoom: the configuration had "provision" "full", and has "assign" now. A pod asks for an ENI on a
// full instance. The node deletes neither a retired ENI, nor an ENI that a killed collection has begun to delete.
func TestAssignMakesNoRoom(t *testing.T) {
	for name, mark := range map[string]func(*registry.ENI){
		"retired": func(e *registry.ENI) { e.Retired = true }, "draining": (*registry.ENI).Drain} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				enis := w.fill(2)
				for n := range w.State().Leases.Len() {
					w.end(n)
				}
				w.Edit(func(s *registry.State) { s.Edit(enis[0], mark) })
				time.Sleep(10 * time.Minute)
				w.policy.Provision = lease.ProvisionAssign
				w.EC2.ResetCalls()
				if full, _, err := w.pool().MakeRoom(w.Context(), w.State()); full == nil || err != nil {
					w.Errorf("full: %v, %v", full, err)
				}
				w.wantWrites(map[string]int{})
			})
		})
	}
}

// TestRetiredMakesRoom: a pool has an empty ENI on a full instance. The ENI makes room for a pod of another pool only
// if the configuration lacks the ENI's pool, or an operator has retired the ENI. Addresses that cool, or that the
// kernel shows in a pod, keep the ENI.
func TestRetiredMakesRoom(t *testing.T) {
	removed := func(w *world, base, _ lease.Policy) { w.collect(base) }
	retire := func(w *world, _, db lease.Policy) {
		w.Edit(func(s *registry.State) {
			for id, e := range s.ENIs {
				e.Retired = e.Pool == db.Pool
				s.ENIs[id] = e
			}
		})
	}
	for name, c := range map[string]struct {
		leaves func(w *world, base, db lease.Policy)
		cools  time.Duration
		runs   bool
		room   bool
	}{
		"removed":     {leaves: removed, cools: time.Minute, room: true},
		"it cools":    {leaves: removed, cools: 59 * time.Second},
		"a pod runs":  {leaves: removed, cools: time.Minute, runs: true},
		"configured":  {leaves: func(w *world, base, db lease.Policy) { w.collect(base, db) }, cools: time.Hour},
		"not noticed": {leaves: func(*world, lease.Policy, lease.Policy) {}, cools: time.Hour},
		"back again": {leaves: func(w *world, base, db lease.Policy) {
			w.collect(base)
			w.collect(base, db)
		}, cools: time.Hour},
		"used again": {leaves: func(w *world, base, db lease.Policy) {
			w.collect(base)
			w.policy = db // the pool of a network that is in no file
			w.mustAcquire(51)
			w.end(51)
			w.policy = base
		}, cools: time.Hour},
		"renewed": {leaves: retire, cools: time.Minute, room: true},
		"renewed, and the role may not detach": {leaves: func(w *world, base, db lease.Policy) {
			retire(w, base, db)
			w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", always)
		}, cools: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Pools, w.policy.ReuseWait = true, time.Second
				w.fill(1)
				for a := range w.State().Leases.All() {
					w.runPod(a)
				}
				base := w.policy
				w.policy.Pool, w.policy.Batch = "db", 1
				db := w.policy
				a := w.mustAcquire(50)
				if c.runs {
					w.runPod(a)
				}
				w.policy = base
				w.end(50)
				c.leaves(w, base, db)
				time.Sleep(c.cools)
				b, err := w.acquire(52)
				if c.room != (err == nil) || !c.room && !errors.Is(err, aws.ErrInstanceFull) {
					w.Errorf("the pod of the other pool has %v: %v", b, err)
				}
				if want := 3; len(w.ENIs()) != want {
					w.Errorf("the instance has %d ENIs, want %d", len(w.ENIs()), want)
				}
				w.consistent()
			})
		})
	}
}

// TestIndexRaised: the boot ENI has free addresses, and interfaceIndex is raised. These addresses no longer count as
// ready, and a collection releases them.
func TestIndexRaised(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.MinIndex, w.policy.Batch = 0, 6
	w.mustAcquire(0)
	w.end(0)
	w.Age(hour)
	w.policy.MinIndex, w.policy.Batch, w.policy.Warm = 1, 1, registry.Warm{Min: 3}
	for n := range 3 {
		w.mustAcquire(1 + n)
	}
	_, err := w.pool().Fill(t.Context())
	must(t, err)
	ready := 0
	for a := range w.State().Free.Keys() {
		if _, e := w.State().ENIOf(a); !e.IsBoot() {
			ready++
		}
	}
	if ready < 3 {
		t.Errorf("the pool is full, and pods can get %d addresses, want at least 3", ready)
	}
	w.Age(hour)
	w.collect()
	for _, e := range w.State().ENIs {
		if want := map[bool]int{true: 1, false: 6}[e.IsBoot()]; len(e.Addrs) != want {
			t.Errorf("the ENI at index %d has %v, want %d", e.Index, e.Addrs, want)
		}
	}
	w.consistent()
	w.policy.MinIndex = 0
	w.mustAcquire(9)
	for id, e := range w.State().ENIs {
		if e.Passed {
			t.Errorf("%s is passed over: %+v", id, e)
		}
	}
}

// TestTwoNetworks: the network of a conflist and a network of Multus share a pool. The network of Multus has no warm,
// and a higher interfaceIndex. The last ADD is of the network of Multus. A collection keeps as many free addresses as
// the conflist wants.
func TestTwoNetworks(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	second := w.policy
	second.MinIndex = 2
	w.policy.Warm = registry.Warm{Min: 4}
	conflist := w.policy
	w.mustAcquire(1)
	w.policy = second
	w.mustAcquire(2)
	w.Age(hour)
	if c := w.collect(conflist); len(c.Unassigned) > 0 {
		t.Errorf("%v went back, and the conflist wants 4 ready", c.Unassigned)
	}
	w.policy = conflist
	w.EC2.ResetCalls()
	w.mustAcquire(3)
	w.wantWrites(map[string]int{})
}

// TestKeepOfConflists: one of two conflists with the same pool has skipDeallocation. This key counts, whichever network
// had the last ADD. When no conflist has skipDeallocation any more, a collection releases free addresses, even before
// the next ADD.
func TestKeepOfConflists(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	other, keeps := w.policy, w.policy
	keeps.Keep = true
	w.policy = keeps
	w.mustAcquire(1)
	w.policy = other
	w.mustAcquire(2)
	release := func(conflists ...lease.Policy) less.Report {
		w.Age(hour)
		return w.collect(conflists...)
	}
	if c := release(other, keeps); len(c.Unassigned) > 0 {
		t.Errorf("%v went back, and one of the conflists has skipDeallocation", c.Unassigned)
	}
	if c := release(other, other); len(c.Unassigned) == 0 {
		t.Error("nothing went back, and no conflist has skipDeallocation any more")
	}
	w.consistent()
}

// TestConflistsDuringCollection: while a collection waits for EC2, an ADD comes from another network, whose conflist
// does not have skipDeallocation. The collection still releases no address, because one of the conflists has it.
func TestConflistsDuringCollection(t *testing.T) {
	w := newWorld(t, "m5.xlarge", 20)
	w.policy.Batch, w.policy.Pools = 4, true
	other, keeps, empty := w.policy, w.policy, w.policy
	keeps.Keep, empty.Pool = true, "empty"
	w.policy = empty
	w.mustAcquire(1)
	w.end(1)
	w.policy = keeps
	w.mustAcquire(2)
	w.Age(hour)
	w.policy = other
	came := false
	w.EC2.OnChange(func(c ec2sim.Change) {
		if c.Kind == ec2sim.Detached && !came {
			came = true
			w.mustAcquire(3)
		}
	})
	if c := w.collect(keeps, other, empty); !came || len(c.Deleted) != 1 || len(c.Unassigned) > 0 {
		t.Errorf("a pod came: %v; deleted %v; %v went back, and one of the conflists has skipDeallocation", came,
			c.Deleted, c.Unassigned)
	}
	w.consistent()
}

// TestWarmOfConflists: one of two conflists with the same pool has warm, and no pod of its network has come yet. A
// collection keeps as many addresses ready as this conflist wants.
func TestWarmOfConflists(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 4
	warm := w.policy
	warm.Warm = registry.Warm{Min: 3}
	w.mustAcquire(1)
	w.Age(hour)
	if c := w.collect(w.policy, warm); len(c.Unassigned) > 0 {
		t.Errorf("%v went back, and one of the conflists wants 3 ready", c.Unassigned)
	}
}

// TestIndexRaisedBeforeBoot: interfaceIndex is raised, and the node boots before an ADD comes. An ENI that serves no
// pods any more does not keep its addresses, although a tag of the ENI says that it keeps them.
func TestIndexRaisedBeforeBoot(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Warm = registry.Warm{Min: 2}
	w.mustAcquire(0)
	w.Lose()
	w.policy.MinIndex = 2
	w.mustAcquire(1)
	w.Age(hour)
	w.collect()
	if enis := w.EC2.ENIs(); len(enis) != 2 {
		t.Errorf("%d ENIs beside the boot ENI, want the one at index 2: %+v", len(enis)-1, w.State().ENIs)
	}
	w.consistent()
}
