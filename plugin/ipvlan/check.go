// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// check compares the interfaces, their addresses and their routes with prevResult.
func check(ctx context.Context, r *plugin.Request[Config]) error {
	if err := checkInterface(r); err != nil {
		return err
	}
	if _, routed := plugin.Routed(r.Prev, r.IfName); routed {
		return nil
	}
	return nl.InPod(ctx, r.NetNS, func(node, pod *nl.NS) error {
		faults, err := Faults(r, node, pod)
		for _, f := range faults {
			err = errors.Join(err, f)
		}
		return errors.Join(err, checkGuards(r, node, pod))
	})
}

// checkGuards returns an error if the master of a slave has no guard. Without the guard, the slave could send packets
// that seem to come from the VPC, and the node would accept these packets. Faults does not check the guard for each
// pod, because the guard belongs to the ENI: doctor and repair check each ENI once.
func checkGuards(r *plugin.Request[Config], node, pod *nl.NS) error {
	asked, err := r.Config.Requests(r.IfName)
	if err != nil {
		return err
	}
	for i, n := range plugin.NICs(r.Prev, r.IfName) {
		s := slave{link: nl.IPVlan{Name: n.Name}}
		if asksExclusive(asked, i) {
			s.mac = n.MAC
		}
		l, err := pod.LinkByName(n.Name)
		if err != nil {
			continue // Faults reports this
		}
		if err := s.guard(node, nl.Guard{Index: l.Peer, MAC: l.MAC}).Check(); err != nil {
			return err
		}
	}
	return nil
}

// Faults lists the objects of an attachment's pod that are missing or wrong, compared with prevResult.
func Faults(r *plugin.Request[Config], node, pod *nl.NS) (faults []nl.Fault, err error) {
	if _, routed := plugin.Routed(r.Prev, r.IfName); routed {
		return nil, nil
	}
	own := nl.PodGroup(r.Digest())
	asked, err := r.Config.Requests(r.IfName)
	if err != nil {
		return nil, err
	}
	forget, err := pod.List("")
	if err != nil {
		return nil, err
	}
	defer forget()
	further := false
	for i, n := range plugin.NICs(r.Prev, r.IfName) {
		s := slave{link: nl.IPVlan{Name: n.Name, NS: pod, Mode: r.Config.Mode, MTU: r.Config.MTU}, ips: n.IPs}
		if i == 0 {
			s.link.Master = r.Config.Master
		}
		if asksExclusive(asked, i) {
			s.mac = n.MAC
		}
		l, err := pod.LinkByName(n.Name)
		further = further || err == nil && nl.Attachment(l.Group) == nl.FurtherGroup(own)
		if further || i > 0 {
			s.table = nl.FurtherTable(own, i)
		}
		if err == nil && n.MAC != "" && l.MAC != n.MAC {
			err = fmt.Errorf("%s has the MAC address %s, not %s", n.Name, l.MAC, n.MAC)
		}
		if err != nil {
			faults = append(faults, nl.Fault{Step: nl.Step{NS: pod, Object: nl.Up{Dev: n.Name}}, Wrong: err})
			continue
		}
		w, err := s.neededObjects(r, node, pod)
		if err != nil {
			return faults, err
		}
		faults = append(faults, w.Faults()...)
	}
	return faults, nil
}

// neededObjects returns those objects of one NIC that CHECK looks for. It leaves out objects that matter only in the
// ADD, and those that a later plugin may have changed. The NIC must ignore router advertisements. It must have no
// addresses except those of prevResult, because any other address belongs to another pod.
func (s slave) neededObjects(r *plugin.Request[Config], node, pod *nl.NS) (w nl.Wiring, err error) {
	s.link.Only = []netip.Addr{}
	var addrs []nl.Object
	v6 := false
	for i, c := range s.ips {
		p, ok := plugin.Prefix(c.Address)
		if !ok {
			return nil, fmt.Errorf("prevResult: address %d of %s is not an IP address", i, s.link.Name)
		}
		s.link.Only = append(s.link.Only, p.Addr())
		addrs = append(addrs, nl.Addr{Prefix: p, Dev: s.link.Name})
		v6 = v6 || p.Addr().Is6()
	}
	w = nl.Wiring{{NS: node, Object: s.linkObject()}}
	objects := append([]nl.Object{s.noRA()}, addrs...)
	if v6 {
		objects = append(objects, nl.MTU6{Dev: s.link.Name})
	}
	if s.table != 0 {
		objects = append(objects, s.further()...)
	} else {
		needed, err := s.neededRoutes(r, pod)
		if err != nil {
			return nil, err
		}
		objects = append(objects, needed...)
	}
	return append(w, nl.Steps(pod, objects)...), nil
}

// neededRoutes returns the routes of prevResult that the pod must have. A later plugin, such as unnumbered-ptp, may
// have replaced a route by a route that has another link, or is in another table. But unnumbered-ptp never replaces a
// default route of prevResult.
func (s slave) neededRoutes(r *plugin.Request[Config], pod *nl.NS) (needed []nl.Object, err error) {
	all, err := pod.Routes(nl.RouteFilter{})
	if err != nil {
		return nil, err
	}
	own := &types100.Result{IPs: s.ips, Routes: r.Prev.Routes}
	for _, route := range resultRoutes(own, prefixes(s.ips), s.link.Name) {
		elsewhere := func(o nl.Route) bool {
			inPlace := o.Table == cmp.Or(route.Table, nl.MainTable)
			switch {
			case o.Dst != route.Dst || o.Dev == "":
				return false
			case o.Dev == s.link.Name:
				return o.Via == route.Via && !inPlace
			}
			return inPlace && (route.Dst.Bits() > 0 || o.Dev != r.Config.ContainerInterface)
		}
		if !slices.ContainsFunc(all, elsewhere) {
			needed = append(needed, route)
		}
	}
	return needed, nil
}

// checkInterface fails if prevResult does not have the interface that ADD made.
func checkInterface(r *plugin.Request[Config]) error {
	if r.Prev == nil {
		return errors.New("CHECK was called without prevResult")
	}
	if !slices.ContainsFunc(r.Prev.Interfaces, func(i *types100.Interface) bool {
		return i.Name == r.IfName && i.Sandbox != ""
	}) {
		return fmt.Errorf("prevResult has no interface %s in the container", r.IfName)
	}
	return nil
}
