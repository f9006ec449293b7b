// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// loseWhileUnassigning gives the node an ENI with a pod and two more addresses, and loses the registry. The next ADD
// learns both addresses, and only then EC2 unassigns one, as for an earlier collection. The results are the pod's
// address, the unassigned one, and the other.
func (w *world) loseWhileUnassigning() (pods, gone, left netip.Addr) {
	w.Helper()
	w.policy.Batch, w.policy.ReuseWait = 3, 0
	pods = w.mustAcquire(1)
	w.runPod(pods)
	eni := w.EC2.ENIs()[1]
	for _, a := range eni.Addrs[1:] { // the primary address cannot be unassigned
		if a != pods {
			gone = a
		}
	}
	for _, a := range eni.Addrs {
		if a != pods && a != gone {
			left = a
		}
	}
	w.Lose()
	w.policy.Batch = 1
	if a := w.mustAcquire(2); a == gone || a == left {
		w.Errorf("%s was given away at once, though EC2 may be about to unassign it", a)
	}
	if err := w.pool().Cloud.Unassign(w.Context(), eni.ID, gone); err != nil {
		w.Fatal(err)
	}
	return pods, gone, left
}

// TestUnconfirmedAfterLoss: no pod gets an address that has left the ENI, but that metadata still listed when the
// registry was rebuilt.
func TestUnconfirmedAfterLoss(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	_, gone, left := w.loseWhileUnassigning()
	w.EC2.ResetCalls()
	w.Age(time.Minute)
	if a := w.mustAcquire(3); a != left {
		t.Errorf("the pod has %s; %s is free, and %s is gone", a, left, gone)
	}
	w.wantWrites(map[string]int{})
	w.consistent()
	if _, unconfirmed := w.State().Unconfirmed(); unconfirmed {
		t.Error("still unconfirmed")
	}
}

// TestUnconfirmedOtherNetwork: as TestUnconfirmedAfterLoss, for pods of another network that may change nothing in EC2.
func TestUnconfirmedOtherNetwork(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	_, gone, left := w.loseWhileUnassigning()
	w.policy = w.another(lease.ProvisionNone)
	w.EC2.ResetCalls()
	if a, err := w.acquire(3); err == nil || !strings.Contains(err.Error(), "until EC2 has confirmed") {
		t.Errorf("the pod has %v, %v; %s is gone, and EC2 has not settled", a.Addrs, err, gone)
	}
	w.Age(time.Minute)
	if a := w.mustAcquire(3); a != left {
		t.Errorf("the pod has %s; %s is free, and %s is gone", a, left, gone)
	}
	w.wantWrites(map[string]int{})
	w.consistent()
}

// TestUnconfirmedNone: no network of the node changes anything in EC2. Free addresses serve pods at once, and no
// process asks EC2.
func TestUnconfirmedNone(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch, w.policy.ReuseWait = 3, 0
	w.runPod(w.mustAcquire(1))
	w.Lose()
	w.policy = w.another(lease.ProvisionNone)
	w.EC2.ResetCalls()
	for n := range 2 {
		w.mustAcquire(2 + n)
	}
	if calls := w.EC2.Calls(); len(calls) > 0 {
		t.Errorf("EC2 was asked: %v", calls)
	}
	w.consistent()
}

// TestUnconfirmedWithoutEC2: if the role may not describe ENIs, the node waits until metadata must have settled.
func TestUnconfirmedWithoutEC2(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	_, gone, left := func() (a, b, c netip.Addr) {
		defer w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", -1)
		return w.loseWhileUnassigning()
	}()
	stop := w.Lie(ec2sim.KeepENI(w.EC2.ENIs()[1].ID))
	w.Age(time.Minute)
	if a := w.mustAcquire(3); a == gone || a == left {
		t.Errorf("the pod has %s, which metadata alone has shown", a)
	}
	stop()
	w.Age(lease.StaleMetadata)
	if a := w.mustAcquire(4); a != left {
		t.Errorf("the pod has %s; %s is free, and %s is gone", a, left, gone)
	}
	w.consistent()
}

// TestUnconfirmedOfENI: an ENI was being detached when the registry was lost. The ENI leaves the new registry again.
func TestUnconfirmedOfENI(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 0
	first := w.mustAcquire(1)
	for n := 2; n <= 11; n++ {
		w.mustAcquire(n)
	}
	w.policy.Batch = 1
	w.runPod(first)
	a := w.State().Held(pod(11).Key)[0]
	second, _ := w.State().ENIOf(a)
	w.Lose()
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, w.byHand().DetachENI(t.Context(), w.ENI(second).Attachment))
	must(t, w.byHand().DeleteENI(t.Context(), second))
	w.Age(time.Minute)
	w.mustAcquire(12)
	if _, known := w.State().ENIs[second]; known {
		t.Errorf("%s is still known", second)
	}
	w.consistent()
}

// TestUnconfirmedOfPrefix: prefixes are unconfirmed like addresses.
func TestUnconfirmedOfPrefix(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Prefixes, w.policy.Batch, w.policy.ReuseWait = true, 20, 0
	a := w.mustAcquire(1)
	w.runPod(a)
	eni := w.EC2.ENIs()[1]
	w.Lose()
	if err := w.pool().Learn(t.Context()); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(eni.Prefixes, func(b netip.Prefix) bool { return !b.Contains(a) })
	if err := w.pool().Cloud.UnassignPrefixes(t.Context(), eni.ID, eni.Prefixes[i]); err != nil {
		t.Fatal(err)
	}
	w.Age(time.Minute)
	for n := 2; n < 18; n++ {
		w.mustAcquire(n)
	}
	w.consistent()
	if has := slices.ContainsFunc(w.State().ENIs[eni.ID].Prefixes, func(b registry.Prefix) bool {
		return b.CIDR == eni.Prefixes[i]
	}); has {
		t.Errorf("%s is still known", eni.Prefixes[i])
	}
}

// TestConfirmedAtBoot: after a boot, pods get the addresses of the launch template at once. A collection looks for an
// ENI that was made right before the boot, and looks again when EC2 has settled.
func TestConfirmedAtBoot(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	if _, unconfirmed := w.State().Unconfirmed(); unconfirmed || w.EC2.Asked("DescribeNetworkInterfaces") != 1 {
		t.Errorf("rebuilt %+v; calls: %v, want one question: which slots are taken", w.State().Rebuilt, w.EC2.Calls())
	}
	w.collect()
	if known.Due(w.State()) {
		t.Errorf("rebuilt %+v", w.State().Rebuilt)
	}
	w.Age(time.Minute)
	if !known.Due(w.State()) {
		t.Error("it does not look again")
	}
	w.collect()
	if r := w.State().Rebuilt; r != (registry.Rebuilt{}) {
		t.Errorf("rebuilt %+v", r)
	}
}

// TestConfirmedWithoutCollections: without collections, a growth looks for what was made before the boot.
func TestConfirmedWithoutCollections(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	w.mustAcquire(2)
	if w.State().Rebuilt.Since.IsZero() {
		t.Error("growth has compared, and a collection would")
	}
	w.Age(20 * time.Minute)
	w.mustAcquire(3)
	if r := w.State().Rebuilt; r != (registry.Rebuilt{}) {
		t.Errorf("rebuilt %+v", r)
	}
}

// TestUnconfirmedWhereAPairIs: the registry is lost while a pod runs whose ENI metadata does not show yet. The
// addresses that metadata shows are unconfirmed, because the pod's veth pair is there.
func TestUnconfirmedWhereAPairIs(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	must(t, nl.Wiring{{NS: w.Host, Object: nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host,
		Group: nl.OwnGroup}}}.Add())
	must(t, w.pool().Learn(t.Context()))
	if _, unconfirmed := w.State().Unconfirmed(); !unconfirmed {
		t.Errorf("rebuilt %+v", w.State().Rebuilt)
	}
}

// TestStraysBeyondRoom: killed processes have created two ENIs, and only one slot is free. The node attaches one of the
// ENIs, and an ADD gets an address of this ENI, although the node can get no further addresses.
func TestStraysBeyondRoom(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch, w.policy.Warm = 10, registry.Warm{Min: 20}
	w.mustAcquire(0)
	for n := 1; n < 10; n++ {
		w.mustAcquire(n)
	}
	for range 2 {
		w.stray()
	}
	w.mustAcquire(10)
	if n := len(w.EC2.ENIs()); n != 3 || len(w.State().Intents) > 0 {
		t.Errorf("%d ENIs, want the boot ENI and two; intents %v", n, w.State().Intents)
	}
	w.consistent()
}

// TestUnconfirmedWithoutPods: the last pod's address was unassigned right before the registry was lost. Only a mark of
// the collection shows that the node has not just booted.
func TestUnconfirmedWithoutPods(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch, w.policy.ReuseWait = 3, 0
	w.mustAcquire(1)
	must(t, w.pool().End(t.Context(), pod(1).Key))
	w.Age(2 * time.Hour)
	c := less.Collection{FreeAfter: time.Hour, Max: 1}
	if done, err := w.pool().Collect(t.Context(), c); err != nil || len(done.Unassigned) == 0 {
		t.Fatalf("unassigned %v, %v", done.Unassigned, err)
	}
	must(t, os.Remove(filepath.Join(w.Dir, "registry.json")))
	must(t, w.pool().Learn(t.Context()))
	if _, unconfirmed := w.State().Unconfirmed(); !unconfirmed {
		t.Errorf("rebuilt %+v", w.State().Rebuilt)
	}
}
