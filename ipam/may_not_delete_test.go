// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// stranded counts the ENIs that are attached to no instance.
func (w *world) stranded() (n int) {
	for _, e := range w.EC2.ENIs() {
		if e.Status == "available" {
			n++
		}
	}
	return n
}

// podsOfTwo is the number of pods that fill two ENIs besides the boot ENI.
const podsOfTwo = 2 * 4

// emptyENIs makes two ENIs whose pods have ended.
func (w *world) emptyENIs() {
	for n := range podsOfTwo {
		w.mustAcquire(n)
	}
	for n := range podsOfTwo {
		w.end(n)
	}
}

// collectOld runs a collection two hours later: everything free has been free for long enough to be released.
func (w *world) collectOld() error {
	time.Sleep(2 * time.Hour)
	_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Hour, Max: -1})
	return err
}

// TestMayNotDelete: the role may detach ENIs, but not delete them. A collection detaches one ENI, which then stays in
// EC2. The slot of this ENI is free for new ENIs, and no collection detaches a further ENI. When the role may delete
// ENIs, a collection deletes all of them.
func TestMayNotDelete(t *testing.T) {
	inBubbleOf(t, "t9.old", func(c *ec2sim.Config) { c.InstanceTypes = capacityTypes }, func(w *world, _ *wires) {
		w.emptyENIs()
		w.EC2.Fail("DeleteNetworkInterface", "UnauthorizedOperation", always)
		for range 3 {
			if err := w.collectOld(); err == nil || !strings.Contains(err.Error(), "DeleteNetworkInterface") ||
				!strings.Contains(err.Error(), "no collection begins to delete another ENI") {
				w.Errorf("the collection says %v", err)
			}
			if n := w.stranded(); n != 1 {
				w.Errorf("%d ENIs are detached, want 1", n)
			}
		}
		for n := range podsOfTwo {
			w.mustAcquire(n)
		}
		if n := len(w.EC2.ENIs()); n != 3+1 {
			w.Errorf("there are %d ENIs, want three and the detached one", n)
		}
		w.EC2.Fail("DeleteNetworkInterface", "", 0)
		for n := range podsOfTwo {
			w.end(n)
		}
		must(w, w.collectOld())
		if enis := w.EC2.ENIs(); len(enis) != 1 {
			w.Errorf("%d ENIs are left", len(enis)-1)
		}
		w.consistent()
	})
}

// TestMayNotDeleteKilled: a collection detached an ENI, and was killed before it recorded that the role may not delete
// the ENI. A growth that needs the slot asks EC2 again to delete the ENI. New pods get addresses, although EC2 refuses.
func TestMayNotDeleteKilled(t *testing.T) {
	inBubbleOf(t, "t9.old", func(c *ec2sim.Config) { c.InstanceTypes = capacityTypes }, func(w *world, _ *wires) {
		w.emptyENIs()
		w.EC2.Fail("DeleteNetworkInterface", "UnauthorizedOperation", always)
		if err := w.collectOld(); err == nil {
			w.Error("the collection has deleted the ENI")
		}
		must(w, w.pool().Registry.Change(w.Context(), func(s *registry.State) {
			for id := range s.ENIs {
				s.Edit(id, (*registry.ENI).Attach)
			}
		}))
		for n := range podsOfTwo {
			w.mustAcquire(n)
		}
		if w.EC2.Asked("DeleteNetworkInterface") < 2 {
			w.Error("no process has tried to delete the ENI")
		}
	})
}

// TestMayNotAttach: the role may create ENIs, but not attach them. The node creates one ENI, and a collection deletes
// it. No message says that a process was interrupted.
func TestMayNotAttach(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.Fail(book.AttachAction, "UnauthorizedOperation", always)
		for n := range 4 {
			if a, err := w.acquire(n); err == nil || strings.Contains(err.Error(), "interrupted") {
				w.Errorf("the pod has %v: %v", a.Addrs, err)
			}
			if n := w.stranded(); n != 1 {
				w.Errorf("%d ENIs are not attached, want 1", n)
			}
			time.Sleep(70 * time.Second)
		}
		must(w, w.collectOld())
		if n := w.stranded(); n != 0 {
			w.Errorf("%d ENIs are left", n)
		}
	})
}
