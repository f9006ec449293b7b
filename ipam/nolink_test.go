// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// linkWorld returns a node with two ENIs whose links an ADD has seen. The first ENI has more pods than the second, and
// one free address.
func linkWorld(t *testing.T) (n *node, first, second string) {
	t.Helper()
	n = newNode(t, "m5.large", ec2sim.Config{}, nil)
	for i := range 12 {
		n.obtain(fmt.Sprint("old", i))
	}
	s := n.State()
	for id, e := range s.ENIs {
		switch {
		case e.Has(n.pods["old0"]):
			first = id
		case e.Index > 0:
			second = id
		}
	}
	n.end("old9")
	n.Age(time.Hour)
	n.EC2.ResetCalls()
	return n, first, second
}

// linkPolicy is the policy of these tests: a growth gets a whole ENI with all its addresses.
var linkPolicy = lease.Policy{MinIndex: 1, Families: []lease.Family{lease.IPv4}, SubnetTags: subnetTags,
	Provision: lease.ProvisionFull,
	ReuseWait: time.Minute, Timeout: 10 * time.Second}

// tryObtain makes the ADD of a pod in the test's process.
func (n *node) tryObtain(pod string) (lease.Allocation, error) {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), linkPolicy.Timeout)
	defer cancel()
	p := n.pool(linkPolicy)
	a, _, err := p.Obtain(ctx, lease.Owner{Key: podKey(pod), NetNS: n.netns(pod)}, p.Acquire)
	return a, err
}

// obtain makes an ADD that must succeed, and returns the ENI of the pod's address.
func (n *node) obtain(pod string) string {
	n.Helper()
	a, err := n.tryObtain(pod)
	if err != nil {
		n.Fatalf("ADD of %s: %v\n%v", pod, err, n.EC2.Calls())
	}
	n.pods[pod] = a.Addrs[0]
	return a.ID
}

// detach detaches an ENI, as an operator does.
func (n *node) detach(id string) {
	n.Helper()
	cloud := aws.New(n.aws)
	enis, err := cloud.DescribeENIs(n.Context(), aws.ByID(id))
	if err == nil {
		err = cloud.DetachENI(n.Context(), enis[0].Attachment)
	}
	if err != nil {
		n.Fatal(err)
	}
	n.EC2.ResetCalls()
}

// attach attaches an ENI at a device index, as an operator does.
func (n *node) attach(id string, index int) {
	n.Helper()
	if _, err := aws.New(n.aws).AttachENI(n.Context(), id, n.ID, 0, index); err != nil {
		n.Fatal(err)
	}
	n.EC2.ResetCalls()
}

func (n *node) collect() {
	n.Helper()
	if _, err := n.pool(lease.Policy{}).Collect(n.Context(), less.Collection{FreeAfter: time.Minute,
		Max: -1}); err != nil {
		n.Fatal(err)
	}
}

// collectUntil runs collections until the registry meets the condition so. While other tests end namespaces, a
// collection may be unable to read one of these namespaces, and then releases nothing.
func (n *node) collectUntil(so func(*registry.State) bool) {
	n.Helper()
	for range 50 {
		if n.collect(); so(n.State()) {
			return
		}
	}
	n.Fatalf("50 collections have not released it; ENIs %v", slices.Collect(maps.Values(n.State().ENIs)))
}

// TestDetachedENIIsPassedOver: an operator detaches the fullest ENI. The next pod gets an address of the other ENI at
// once, no process asks EC2, and the registry records the missing link.
func TestDetachedENIIsPassedOver(t *testing.T) {
	n, first, second := linkWorld(t)
	n.detach(first)
	if on := n.obtain("new"); on != second {
		t.Errorf("the pod is on %s, want %s", on, second)
	}
	if calls := n.EC2.Calls(); len(calls) != 0 {
		t.Errorf("EC2 was asked: %v", calls)
	}
	s := n.State()
	if e := s.ENIs[first]; !e.NoLink(time.Now()) || s.ENIs[second].NoLink(time.Now()) {
		t.Errorf("%s: %+v", first, e)
	}
	if left := lease.Ready(s, "", time.Now()); left != 7 {
		t.Errorf("%d addresses are ready, want the 7 of the second ENI", left)
	}
	n.leasesAre()
}

// leasesAre checks that each pod has a lease of its address, and that the registry has no other leases.
func (n *node) leasesAre() {
	n.Helper()
	s := n.State()
	for pod, a := range n.pods {
		if l, ok := s.Leases.At(a); !ok || l.Key != podKey(pod) {
			n.Errorf("%s of %s is leased by %v", a, pod, l.Key)
		}
	}
	if s.Leases.Len() != len(n.pods) {
		n.Errorf("%d leases for %d pods", s.Leases.Len(), len(n.pods))
	}
}

// TestGrowthInPlaceOfDetachedENI: a growth creates an ENI in the slot of a detached ENI, as soon as EC2 shows that the
// slot is free.
func TestGrowthInPlaceOfDetachedENI(t *testing.T) {
	n, first, second := linkWorld(t)
	n.detach(first)
	var on string
	for i := range 9 { // one more than the second ENI has free addresses
		on = n.obtain(fmt.Sprint("new", i))
	}
	s := n.State()
	if on == first || on == second || len(s.ENIs) != 4 || !s.ENIs[first].Detached || s.Attached() != 3 {
		t.Errorf("the last pod is on %s; ENIs %+v", on, s.ENIs)
	}
}

// TestSameADDOnDetachedENI: a pod already has an address of the detached ENI. The error of its ADD names the ENI at
// once.
func TestSameADDOnDetachedENI(t *testing.T) {
	n, first, _ := linkWorld(t)
	n.detach(first)
	had := n.pods["old0"]
	_, err := n.tryObtain("old0")
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != plugin.CodeTryAgain || !errors.Is(err, lease.ErrNoLink) ||
		!strings.Contains(err.Error(), first) || !strings.Contains(e.Hint, "status") {
		t.Errorf("%v (%+v)", err, e)
	}
	if held := n.State().Held(podKey("old0")); !slices.Contains(held, had) {
		t.Errorf("it holds %v, and had %s", held, had)
	}
}

// TestErrorNamesENIWithoutLink: if no other ENI can serve the pod, the error names the ENI that is passed over.
func TestErrorNamesENIWithoutLink(t *testing.T) {
	n, first, _ := linkWorld(t)
	n.detach(first)
	n.EC2.Fail("CreateNetworkInterface", "UnauthorizedOperation", -1)
	for i := range 8 {
		n.obtain(fmt.Sprint("new", i))
	}
	for range 2 { // the second ADD does not look for the cause again
		_, err := n.tryObtain("one more")
		e, ok := errors.AsType[*plugin.Error](err)
		if !ok || !strings.Contains(err.Error(), first) || !strings.Contains(e.Hint, "dmesg") {
			t.Errorf("%v (%+v)", err, e)
		}
	}
	n.leasesAre()
}

// TestDetachedENIComesBack: an ENI that is attached again serves pods. An ADD that finds no other address looks for the
// link of this ENI.
func TestDetachedENIComesBack(t *testing.T) {
	n, first, second := linkWorld(t)
	n.detach(first)
	for i := range 8 { // all free addresses of the second ENI
		if on := n.obtain(fmt.Sprint("new", i)); on != second {
			t.Fatalf("on %s", on)
		}
	}
	n.attach(first, 1)
	if on := n.obtain("last"); on != first {
		t.Errorf("the pod is on %s, want %s", on, first)
	}
	if calls := n.EC2.Calls(); len(calls) != 0 {
		t.Errorf("EC2 was asked: %v", calls)
	}
	if e := n.State().ENIs[first]; !e.Missed.IsZero() || e.Detached {
		t.Errorf("%+v", e)
	}
}

// TestCollectionLooksAtLinks: a collection finds that a link is missing, before an ADD finds this. Later a collection
// finds that the link is there again.
func TestCollectionLooksAtLinks(t *testing.T) {
	n, first, _ := linkWorld(t)
	n.detach(first)
	n.collect()
	if e := n.State().ENIs[first]; !e.NoLink(time.Now()) || !e.Detached {
		t.Errorf("without its link: %+v", e)
	}
	n.attach(first, 1)
	n.collect()
	if e := n.State().ENIs[first]; e.NoLink(time.Now()) || e.Detached {
		t.Errorf("with its link: %+v", e)
	}
}

// TestDetachedENIIsForgotten: the pods of a detached ENI have ended. The ENI leaves the registry. If this suite has
// made it, and it is attached to nothing, a collection deletes it.
func TestDetachedENIIsForgotten(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprint("attached elsewhere ", elsewhere), func(t *testing.T) {
			n, first, _ := linkWorld(t)
			n.detach(first)
			if elsewhere {
				other, err := n.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
				if err == nil {
					_, err = aws.New(n.aws).AttachENI(t.Context(), first, other.ID, 0, 5)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			n.collect()
			if _, known := n.State().ENIs[first]; !known {
				t.Fatal("it is forgotten while it has pods")
			}
			for i := range 9 {
				n.end(fmt.Sprint("old", i))
			}
			n.Age(time.Hour)
			n.collectUntil(func(s *registry.State) bool { _, known := s.ENIs[first]; return !known })
			i := slices.IndexFunc(n.EC2.ENIs(), func(e ec2sim.ENI) bool { return e.ID == first })
			if kept := i >= 0 && n.EC2.ENIs()[i].Instance != ""; kept != elsewhere || i >= 0 && !elsewhere {
				t.Errorf("EC2 has it: %v, attached: %v", i >= 0, kept)
			}
		})
	}
}

// TestLinkOfNewENIIsAwaited: an ADD waits for the link of a new ENI. A process that finds the link records this.
func TestLinkOfNewENIIsAwaited(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.acquire(0, "old")
	eni := n.newest()
	n.unplug(eni)
	done := make(chan error, 1)
	go func() { _, err := n.tryObtain("new"); done <- err }()
	n.until("an ADD misses the link", func(s *registry.State) bool { return !s.ENIs[eni.ID].Missed.IsZero() })
	n.Plug(ec2sim.Change{Kind: ec2sim.Attached, Instance: n.ID, ENI: eni})
	if err := <-done; err != nil {
		t.Error(err)
	}
	if e := n.State().ENIs[eni.ID]; !e.Missed.IsZero() || e.Link == "" {
		t.Errorf("%+v", e)
	}
}

// TestLinkNeverComes: the link of a new ENI does not appear. The ADD that waits for this link stops waiting before its
// own deadline, and gets an address of another ENI. Later ADDs pass over the ENI without a link at once.
func TestLinkNeverComes(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.acquire(0, "old")
	eni := n.newest()
	n.unplug(eni)
	const rest = 10 * time.Millisecond
	n.Edit(func(s *registry.State) {
		e := s.ENIs[eni.ID]
		e.Missed = time.Now().Add(rest - registry.LinkPatience)
		s.ENIs[eni.ID] = e
	})
	for _, pod := range []string{"waits", "knows"} {
		if on := n.obtain(pod); on == eni.ID {
			t.Errorf("%s is on %s", pod, on)
		}
	}
	n.leasesAre()
}

// newest returns the ENI that was made last.
func (n *node) newest() ec2sim.ENI {
	enis := n.EC2.ENIs()
	return slices.MaxFunc(enis, func(a, b ec2sim.ENI) int { return strings.Compare(a.ID, b.ID) })
}

// unplug removes the link of an ENI, without a change in EC2.
func (n *node) unplug(e ec2sim.ENI) {
	n.Helper()
	n.Plug(ec2sim.Change{Kind: ec2sim.Detached, Instance: n.ID, ENI: e})
}

// until waits until the registry meets the condition so.
func (n *node) until(what string, so func(*registry.State) bool) {
	n.Helper()
	for !so(n.State()) {
		select {
		case <-n.Context().Done():
			n.Fatalf("never: %s; ENIs %v", what, slices.Collect(maps.Values(n.State().ENIs)))
		case <-time.After(time.Millisecond):
		}
	}
}

// TestGrowthLooksAtLinks: an operator detaches an ENI whose addresses all have pods, so no ADD finds its link missing.
// A growth finds this, and creates an ENI in the slot.
func TestGrowthLooksAtLinks(t *testing.T) {
	n, _, second := linkWorld(t)
	for i := 12; i < 21; i++ {
		n.obtain(fmt.Sprint("old", i))
	}
	n.Operate("DetachNetworkInterface", "AttachmentId", n.ENIs()[2].Attachment)
	a, err := n.tryObtain("new")
	if err != nil || a.ID == second {
		t.Errorf("the pod has %v on %s: %v", a.Addrs, a.ID, err)
	}
}

// TestMovedENIThatNoADDHasUsed: an operator moves an ENI to another instance before an ADD has used its link. A
// collection unassigns nothing from it.
func TestMovedENIThatNoADDHasUsed(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.acquire(4, "old") // without a whole ADD, which would look at the link
	n.end("old")
	n.Age(time.Hour)
	other, err := n.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
	must(t, err)
	was := n.ENIs()[1]
	n.Operate("DetachNetworkInterface", "AttachmentId", was.Attachment)
	n.Operate("AttachNetworkInterface", "NetworkInterfaceId", was.ID, "InstanceId", other.ID, "DeviceIndex", "1")
	n.EC2.ResetCalls()
	p := n.pool(linkPolicy)
	_, err = p.Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: 3})
	must(t, err)
	if is := other.ENIs()[1]; len(is.Addrs) != len(was.Addrs) {
		t.Errorf("%s on %s had %v, and has %v: %v", was.ID, other.ID, was.Addrs, is.Addrs, n.EC2.Calls())
	}
}

// TestDetachedENIOfPoolThatKeeps: a collection deletes a detached ENI of ours even if its pool has skipDeallocation, or
// its tags were not known.
func TestDetachedENIOfPoolThatKeeps(t *testing.T) {
	for name, change := range map[string]func(*registry.ENI){
		"keeps":   func(e *registry.ENI) { e.Keep = true },
		"no tags": func(e *registry.ENI) { e.Managed = false },
	} {
		t.Run(name, func(t *testing.T) {
			n, first, _ := linkWorld(t)
			n.end(names("old", 12)...)
			n.Age(time.Hour)
			must(t, n.Registry().Update(t.Context(), func(s *registry.State) error {
				e := s.ENIs[first]
				change(&e)
				s.ENIs[first] = e
				return nil
			}))
			i := slices.IndexFunc(n.ENIs(), func(e ec2sim.ENI) bool { return e.ID == first })
			n.Operate("DetachNetworkInterface", "AttachmentId", n.ENIs()[i].Attachment)
			n.collectUntil(func(*registry.State) bool {
				return !slices.ContainsFunc(n.EC2.ENIs(), func(e ec2sim.ENI) bool { return e.ID == first })
			})
		})
	}
}

// TestLostRegistryKnowsLinks: a rebuilt registry records the links on the node. An ENI without its link serves no pod,
// and no ADD waits for the link. The reason is that a collection may have detached the ENI right before the loss.
func TestLostRegistryKnowsLinks(t *testing.T) {
	n, first, second := linkWorld(t)
	for _, e := range n.EC2.ENIs() {
		if e.ID == second {
			n.unplug(e)
		}
	}
	p := n.pool(linkPolicy)
	must(t, p.Registry.Mark("gave-back")) // the node has not just booted
	must(t, os.Remove(filepath.Join(n.Dir, "registry.json")))
	must(t, p.Learn(t.Context()))
	s := n.State()
	if e := s.ENIs[first]; e.Link == "" || !e.Missed.IsZero() {
		t.Errorf("the link of %s is on the node: %+v", first, e)
	}
	if e := s.ENIs[second]; e.Link != "" || !e.NoLink(time.Now()) {
		t.Errorf("the link of %s is not on the node: %+v", second, e)
	}
}
