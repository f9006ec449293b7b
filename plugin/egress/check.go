// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// check compares all that a pod has with what it should have, except sysctls and MTUs, which other plugins may change.
//
// Another configuration applies to new pods. The seal of the table reports whether the pod is of the present one. Then
// the destinations and the clients are compared, too. If the pod's configuration is another one, check compares only
// what all configurations have in common: see [Lost].
func check(ctx context.Context, r *plugin.Request[Config]) error {
	role, err := r.Config.role(r.Pod)
	if err != nil || role.none() || r.Prev == nil {
		return err
	}
	return nl.InPod(ctx, r.NetNS, func(_, ns *nl.NS) error {
		p, err := readPod(r, ns)
		if err != nil || p == nil {
			return err
		}
		p.routes = nil // they may have changed since the ADD; without a route that spares them, the router refuses
		w, err := p.wiring(r, role)
		if err != nil {
			return err
		}
		if !sealed(w) {
			return p.otherwise()
		}
		return lasting(w).Check()
	})
}

// sealed reports whether a wiring's table in the kernel is of the present configuration.
func sealed(w nl.Wiring) bool {
	return slices.ContainsFunc(w, func(s nl.Step) bool {
		t, is := s.Object.(nl.Table)
		return is && t.Sealed(s.NS)
	})
}

// lasting is a wiring without the objects that other plugins may change.
func lasting(w nl.Wiring) (rest nl.Wiring) {
	for _, s := range w {
		switch o := s.Object.(type) {
		case nl.Sysctl:
			continue
		case nl.Route:
			o.MTU = 0
			s.Object = o
		case nl.Tunnel:
			o.MTU = 0
			s.Object = o
		}
		rest = append(rest, s)
	}
	return rest
}

// otherwise is the check of a pod of another configuration.
func (p *pod) otherwise() error {
	is, err := fromKernel(p.ns, p.nic.Name)
	if err != nil {
		return err
	}
	if len(is.addrs) > 0 && (is.group != p.group || slices.ContainsFunc(is.addrs,
		func(a netip.Addr) bool { return !slices.Contains(p.addrs, a) })) {
		return fmt.Errorf("the tunnels have the addresses %v and the group %d, want %v and %d", is.addrs, is.group,
			p.addrs, p.group)
	}
	return is.lost()
}

// Lost reports the objects that a pod lacks, of those that each client and each router has with any configuration. name
// is the link of the ENI. The error is fs.ErrNotExist if the pod has nothing of an egress.
func Lost(ns *nl.NS, name string) error {
	p, err := fromKernel(ns, name)
	if err != nil {
		return err
	}
	if router, table := p.isRouter(); len(p.addrs) == 0 && !router && !table {
		return nothing(ns)
	}
	if err := p.lost(); err != nil {
		return fmt.Errorf("%w: %v", ErrLost, err)
	}
	return nil
}

// ErrLost is the error that Lost returns for a client or a router.
var ErrLost = errors.New("a part of the egress is lost")

// fromKernel is a pod as its tunnels show it.
func fromKernel(ns *nl.NS, name string) (*pod, error) {
	links, err := ns.Links()
	p := &pod{ns: ns, nic: plugin.NIC{Name: name}, links: []string{name}}
	for _, l := range links {
		if local, port, is := l.Tunnel(); is && (l.Name == Link4 || l.Name == Link6) {
			p.addrs, p.port, p.group = append(p.addrs, local), port, l.Group
		}
	}
	return p, err
}

// isRouter reports whether the table of a pod is a router's, or else a client's.
func (p *pod) isRouter() (router, client bool) {
	has := func(c nl.Chain) bool {
		return nl.Table{Family: "inet", Name: Table, Chains: []nl.Chain{c}}.Intact(p.ns) == nil
	}
	return has(nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100}),
		has(nl.Chain{Name: "output", Type: "route", Hook: "output", Priority: mangle})
}

// lost reports what the pod lacks of its role.
func (p *pod) lost() error {
	if len(p.addrs) == 0 {
		return fmt.Errorf("the links %s and %s of the tunnel are gone: %w", Link4, Link6, fs.ErrNotExist)
	}
	router, _ := p.isRouter()
	var objects []nl.Object
	var families []nl.Family
	for _, a := range p.addrs {
		f := nl.FamilyOf(a)
		families = append(families, f)
		objects = append(objects, nl.Tunnel{Name: linkName(f), Local: a, Port: p.port, Group: p.group},
			nl.FOU{Local: a, Port: p.port})
		if router {
			objects = append(append(objects, p.routeBack(f)), p.routerRules(f)...)
		} else {
			objects = append(objects, p.clientRules(f)...)
		}
	}
	err := errors.Join(p.steps(objects).Check(), p.lostFamily(families))
	if router {
		return errors.Join(err, p.routerTable(nil, Egress{}).Intact(p.ns))
	}
	return errors.Join(err, p.clientTable(nil, nil).Intact(p.ns), p.lostRoutes(families))
}

// lostFamily reports rules about a tunnel that is gone, while there is one of the other family.
func (p *pod) lostFamily(families []nl.Family) (failed error) {
	rules, err := p.ns.Rules()
	for _, r := range rules {
		if r.Pref == prefOut && r.Protocol == nl.RouteProtocol && !slices.Contains(families, r.Family) {
			failed = errors.Join(failed, fmt.Errorf("the link %s of the tunnel is gone: %w", linkName(r.Family),
				fs.ErrNotExist))
		}
	}
	return errors.Join(err, failed)
}

// lostRoutes reports destinations of a client that have no route by the tunnel, or none that refuses without it.
func (p *pod) lostRoutes(families []nl.Family) (failed error) {
	routes, err := p.ns.Routes(nl.RouteFilter{Table: TableOut, Protocol: nl.RouteProtocol})
	if err != nil {
		return err
	}
	for _, f := range families {
		by, without := map[netip.Prefix]bool{}, map[netip.Prefix]bool{}
		for _, r := range routes {
			switch {
			case nl.FamilyOf(r.Dst.Addr()) != f:
			case r.Type == "unreachable":
				without[r.Dst] = true
			case r.Dev == linkName(f) && r.Via.IsValid():
				by[r.Dst] = true
			}
		}
		failed = errors.Join(failed, unlike(without, by, "it has no route by the tunnel"),
			unlike(by, without, "without the tunnel, it would leave by the pod's own address"))
		if len(by) == 0 {
			failed = errors.Join(failed, fmt.Errorf("%v: no route leads into the tunnel: %w", f, fs.ErrNotExist))
		}
	}
	return failed
}

// unlike reports the prefixes of one set that are not in another.
func unlike(one, other map[netip.Prefix]bool, means string) (failed error) {
	for dst := range one {
		if !other[dst] {
			failed = errors.Join(failed, fmt.Errorf("destination %s: %s: %w", dst, means, fs.ErrNotExist))
		}
	}
	return failed
}
