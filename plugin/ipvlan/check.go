// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// check compares the interfaces and their addresses with prevResult, and the rules and tables of
// further NICs. It does not compare the routes of the main table, which a later plugin may have
// changed (CNI specification, CHECK).
func check(ctx context.Context, r *plugin.Request[Config]) error {
	if err := hasInterface(r); err != nil {
		return err
	}
	return nl.InPod(ctx, r.NetNS, func(node, pod *nl.NS) error {
		own := nl.PodGroup(r.Digest())
		asked, err := r.Config.Requests(r.IfName)
		if err != nil {
			return err
		}
		further := false
		for i, n := range plugin.NICs(r.Prev, r.IfName) {
			s := slave{link: nl.IPVlan{Name: n.Name, NS: pod, Mode: r.Config.Mode, MTU: r.Config.MTU}, ips: n.IPs}
			if i == 0 {
				s.link.Master = r.Config.Master
			}
			if exclusive(asked, i) {
				s.mac = n.MAC
			}
			l, err := pod.LinkByName(n.Name)
			further = further || err == nil && nl.Attachment(l.Group) == nl.FurtherGroup(own)
			if further || i > 0 {
				s.table = nl.FurtherTable(own, i)
			}
			if err := s.check(node, pod); err != nil {
				return err
			}
			if err := s.guard(node, nl.Guard{Index: l.Peer, MAC: l.MAC}).Check(); err != nil {
				return err
			}
			if err == nil && n.MAC != "" && l.MAC != n.MAC {
				err = fmt.Errorf("%s has the MAC address %s, not %s", n.Name, l.MAC, n.MAC)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// check compares one NIC with what it should be.
func (s slave) check(node, pod *nl.NS) error {
	w := nl.Wiring{{NS: node, Object: s.object()}}
	for i, c := range s.ips {
		p, ok := plugin.Prefix(c.Address)
		if !ok {
			return fmt.Errorf("prevResult: address %d of %s is no address", i, s.link.Name)
		}
		w = append(w, nl.Step{NS: pod, Object: nl.Addr{Prefix: p, Dev: s.link.Name}})
		if v6 := p.Addr().Is6(); v6 && !slices.ContainsFunc(w, isMTU6) {
			w = append(w, nl.Step{NS: pod, Object: nl.MTU6{Dev: s.link.Name}})
		}
	}
	if s.table != 0 {
		for _, o := range s.further() {
			w = append(w, nl.Step{NS: pod, Object: o})
		}
	}
	return w.Check()
}

func isMTU6(s nl.Step) bool { _, is := s.Object.(nl.MTU6); return is }

// hasInterface fails if prevResult does not have the interface that ADD made.
func hasInterface(r *plugin.Request[Config]) error {
	if r.Prev == nil {
		return errors.New("CHECK was called without prevResult")
	}
	if !slices.ContainsFunc(r.Prev.Interfaces, func(i *types100.Interface) bool { return i.Name == r.IfName && i.Sandbox != "" }) {
		return fmt.Errorf("prevResult has no interface %s in the container", r.IfName)
	}
	return nil
}
