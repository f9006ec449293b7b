// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"errors"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestNoLongerThere: an ADD or a DEL ends all leases of its attachment. An address that has left its ENI meanwhile does
// not become free.
func TestNoLongerThere(t *testing.T) {
	there, gone := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("10.0.0.6")
	o := Owner{Key: registry.Key{Network: "net", Attachment: plugin.Attachment{ContainerID: "c1", IfName: "eth0"}}}
	for name, back := range map[string]func(*Pool) error{
		"its link is missed":   func(p *Pool) error { return p.freeAddrs(t.Context(), o) },
		"another is in use":    func(p *Pool) error { return p.rejectAddrs(t.Context(), o, nil, routePlace) },
		"its attachment ended": func(p *Pool) error { return p.End(t.Context(), o.Key) },
	} {
		r, err := registry.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		err = r.Update(t.Context(), func(s *registry.State) error {
			s.ENIs["eni-1"] = registry.ENI{Addrs: []netip.Addr{there}}
			for _, a := range []netip.Addr{there, gone} {
				if err := s.Reserve(a, o.lease("eni-1", Choice{}, a, time.Now())); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			err = back(&Pool{Registry: r})
		}
		s, e := r.View()
		if err != nil || e != nil || s.Leases.Len() > 0 || !s.Free.Has(there) || s.Free.Has(gone) {
			t.Errorf("%s: leases %v, free %v: %v, %v", name, maps.Collect(s.Leases.All()),
				maps.Collect(s.Free.All()), err, e)
		}
	}
}

// TestSeenSomewhere: the kernel has shown that an address is in use, but not where, so its lease gets an empty key. The
// address was reserved for an attachment. A DEL of this attachment does not end the lease with the empty key.
func TestSeenSomewhere(t *testing.T) {
	a := netip.MustParseAddr("10.0.0.5")
	o := Owner{Key: registry.Key{Network: "net", Attachment: plugin.Attachment{ContainerID: "c1", IfName: "eth0"}}}
	r, err := registry.Open(t.TempDir())
	if err == nil {
		err = r.Update(t.Context(), func(s *registry.State) error {
			s.ENIs["eni-1"] = registry.ENI{Addrs: []netip.Addr{a}}
			return s.Reserve(a, o.lease("eni-1", Choice{}, a, time.Now()))
		})
	}
	p := &Pool{Registry: r}
	err = errors.Join(err, p.rejectAddrs(t.Context(), o, []netip.Addr{a}, ""), p.End(t.Context(), o.Key, a))
	if err != nil {
		t.Fatal(err)
	}
	if s, err := r.View(); err != nil || s.Free.Has(a) || !s.Leases.Has(a) {
		t.Errorf("it is free, though a pod has it: %v, %v", maps.Collect(s.Leases.All()), err)
	}
}
