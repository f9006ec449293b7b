// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// elsewhere has launches of instances whose boot ENI is not at device index 0 of card 0.
var elsewhere = map[string]ec2sim.RunInstance{
	"index 1":           {BootIndex: 1, Secondary: 2},
	"card 1":            {BootCard: 1, Secondary: 2},
	"index 1 of card 1": {BootCard: 1, BootIndex: 1, Secondary: 2},
}

// TestBootElsewhere: the boot ENI is not at device index 0 of card 0. No pod gets an address of this ENI. No process
// detaches or deletes it, or releases its addresses, even after a loss of the registry.
func TestBootElsewhere(t *testing.T) {
	for name, run := range elsewhere {
		t.Run(name, func(t *testing.T) {
			w := cards(t, run)
			w.policy.ReuseWait = 0
			boot := w.ENIs()[0]
			for n := range 6 { // more pods than one ENI can serve
				if a := w.mustAcquire(n); slices.Contains(boot.Addrs, a) {
					t.Errorf("pod %d has %s, which is the boot ENI's", n, a)
				}
			}
			if e := w.State().ENIs[boot.ID]; !e.IsBoot() || e.Groups != nil {
				t.Errorf("the registry has the boot ENI as %+v", e)
			}
			w.Lose()
			if a := w.mustAcquire(6); slices.Contains(boot.Addrs, a) {
				t.Errorf("after a loss, a pod has %s, which is the boot ENI's", a)
			}
			if err := w.pool().Remove(t.Context(), boot.ID); err == nil ||
				!strings.Contains(err.Error(), "it is the boot ENI of this node") {
				t.Errorf("remove-interface: %v", err)
			}
			for range 2 {
				w.Edit(func(s *registry.State) {
					s.EndWhere(time.Now().Add(-time.Hour), func(netip.Addr, registry.Lease) bool { return true })
				})
				w.Age(time.Hour)
				must1(w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}))(t)
			}
			if enis := w.ENIs(); len(enis) != 1 || enis[0].ID != boot.ID ||
				!slices.Equal(enis[0].Addrs[:1], boot.Addrs[:1]) {
				t.Errorf("after collections: %+v", enis)
			}
			w.neverTouched(boot)
		})
	}
}

// TestBootElsewhereAtZero: at first, metadata shows the boot ENI at device index 0. EC2 shows the true index, but does
// not say which ENI is the boot ENI. The registry must combine both answers.
func TestBootElsewhereAtZero(t *testing.T) {
	w := cards(t, elsewhere["index 1"])
	boot := w.ENIs()[0]
	stop := w.Lie(ec2sim.ZeroDeviceNumber(boot.ID))
	must(t, w.pool().Learn(t.Context()))
	stop()
	w.Edit(func(s *registry.State) {
		// Growth asks EC2 for the outcome of the call that this intent records.
		s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: "eni-00000000000000099", Since: time.Now()}
	})
	w.mustAcquire(1)
	if e := w.State().ENIs[boot.ID]; !e.IsBoot() || e.Index != 1 || e.Groups != nil {
		t.Errorf("the registry has the boot ENI as %+v", e)
	}
}

// TestBootElsewhereServes: with interfaceIndex 0, pods get the secondary addresses of the boot ENI, and never the
// primary address.
func TestBootElsewhereServes(t *testing.T) {
	for name, run := range elsewhere {
		t.Run(name, func(t *testing.T) {
			w := cards(t, run)
			w.policy.MinIndex, w.policy.Provision, w.policy.ReuseWait = 0, lease.ProvisionNone, 0
			boot := w.ENIs()[0]
			for round := range 2 {
				for n := range 2 {
					if a := w.mustAcquire(n); !slices.Contains(boot.Addrs[1:], a) {
						t.Errorf("round %d: pod %d has %s, want one of %v", round, n, a, boot.Addrs[1:])
					}
				}
				if a, err := w.acquire(2); err == nil {
					t.Errorf("round %d: a third pod has %v", round, a.Addrs)
				}
				w.end(0)
				w.end(1)
				w.Lose()
				must(t, w.pool().Learn(t.Context()))
				w.Age(time.Hour)
			}
			w.neverTouched(boot)
		})
	}
}

// TestBootElsewhereUpgrade: an earlier release did not record that the ENI at device index 1 is the boot ENI. It
// recorded the primary address of this ENI as free. Learn corrects both errors.
func TestBootElsewhereUpgrade(t *testing.T) {
	w := cards(t, ec2sim.RunInstance{BootIndex: 1, Secondary: 1})
	w.policy.MinIndex, w.policy.Provision = 0, lease.ProvisionNone
	boot := w.ENIs()[0]
	must(t, w.pool().Learn(t.Context()))
	w.Edit(func(s *registry.State) {
		e := s.ENIs[boot.ID]
		e.Boot, e.Groups, e.Tags = false, []string{"sg-1"}, map[string]string{"Name": "node"}
		s.ENIs[boot.ID] = e
		s.Free.Set(boot.Addrs[0], time.Time{})
	})
	must(t, w.pool().Learn(t.Context()))
	s := w.State()
	if e := s.ENIs[boot.ID]; !e.IsBoot() || e.Groups != nil || e.Tags != nil || s.Free.Has(boot.Addrs[0]) {
		t.Errorf("the boot ENI: %+v; its address is free: %v", e, s.Free.Has(boot.Addrs[0]))
	}
}

// neverTouched fails if EC2 was asked to detach or delete the boot ENI, or to unassign an address of it.
func (w *world) neverTouched(boot ec2sim.ENI) {
	w.Helper()
	for _, c := range w.EC2.Calls() {
		switch c.Action {
		case "DetachNetworkInterface", "DeleteNetworkInterface", "UnassignPrivateIpAddresses":
			if c.Params["AttachmentId"] == boot.Attachment || c.Params["NetworkInterfaceId"] == boot.ID {
				w.Errorf("EC2 was asked for %v", c)
			}
		}
	}
}

// TestResized: an operator stops the instance and changes its type. The registry on disk has the limits of the old
// type. A collection or an ADD must replace them.
func TestResized(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.mustAcquire(1)
	is := w.State().Instance
	w.Edit(func(s *registry.State) {
		s.Instance.Type, s.Instance.ENIs, s.Instance.IPv4PerENI = "t3.nano", 2, 2
	})
	must1(w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Hour, Max: -1}))(t)
	for n := range 6 {
		w.mustAcquire(n)
	}
	if now := w.State().Instance; now.Type != is.Type || now.ENIs != is.ENIs || now.IPv4PerENI != is.IPv4PerENI {
		t.Errorf("%+v, want %+v", now, is)
	}
	w.consistent()
}
