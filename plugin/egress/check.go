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
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// check compares the objects that a pod has with the objects that the pod should have. check ignores MTUs and some
// sysctls, which other plugins may change: see [checkedWiring].
//
// A changed configuration applies to new pods, and to a running pod only after a [Renewal]. The seal of the pod's
// nftables table (see [nl.Table.Sealed]) shows whether the pod has the present configuration. If the pod has the
// present configuration, check also compares the destinations and the clients. Otherwise, check compares only the
// objects that a pod has in every configuration: see [Lost].
func check(ctx context.Context, r *plugin.Request[Config]) error {
	role, err := r.Config.roleOf(r.Pod)
	if err != nil || role.isNone() || r.Prev == nil {
		return err
	}
	return nl.InPod(ctx, r.NetNS, func(_, ns *nl.NS) error {
		p, err := readPod(r, ns)
		if err != nil || p == nil {
			return err
		}
		// The pod's routes may have changed since the ADD. So ignore the throw routes that the ADD made for the earlier
		// routes.
		p.routes = nil
		w, err := p.wiring(r, role)
		if err != nil {
			return err
		}
		if !isSealed(w) {
			return p.checkOtherConfig()
		}
		return checkedWiring(w).Check()
	})
}

// isSealed reports whether the pod's nftables table in the kernel was made from the same configuration as the wiring w.
func isSealed(w nl.Wiring) bool {
	return slices.ContainsFunc(w, func(s nl.Step) bool {
		t, is := s.Object.(nl.Table)
		return is && t.Sealed(s.NS)
	})
}

// checkedWiring returns a wiring without its MTUs, and without the rp_filter of links that are not tunnels, because
// other plugins may change these values. The egress does not work without the other sysctls, so checkedWiring keeps
// them.
func checkedWiring(w nl.Wiring) (rest nl.Wiring) {
	for _, s := range w {
		switch o := s.Object.(type) {
		case nl.Sysctl:
			if strings.HasSuffix(o.Key, "/rp_filter") && o != anySourceSysctl(Link4) {
				continue
			}
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

// checkOtherConfig checks a pod whose objects were made for another configuration.
func (p *pod) checkOtherConfig() error {
	is, err := podFromKernel(p.ns, p.nic.Name)
	if err != nil {
		return err
	}
	if len(is.addrs) > 0 && (is.group != p.group || slices.ContainsFunc(is.addrs,
		func(a netip.Addr) bool { return !slices.Contains(p.addrs, a) })) {
		return fmt.Errorf("the tunnels have the addresses %v and the group %d, want %v and %d", is.addrs, is.group,
			p.addrs, p.group)
	}
	return is.missingError()
}

// Lost returns an error that names the missing objects of a pod. It looks only for objects that do not depend on the
// configuration. name is the name of the pod's link to the VPC. The error is fs.ErrNotExist if the pod has no object of
// an egress.
func Lost(ns *nl.NS, name string) error {
	p, err := podFromKernel(ns, name)
	if err != nil {
		return err
	}
	if router, table := p.tableRoles(); len(p.addrs) == 0 && !router && !table {
		return noRoleError(ns)
	}
	if err := p.missingError(); err != nil {
		return fmt.Errorf("%w: %v", ErrLost, err)
	}
	return nil
}

// ErrLost is the error that Lost returns for a client or a router.
var ErrLost = errors.New("a part of the egress is lost")

// podFromKernel returns a pod with only the facts that the kernel shows: the tunnels' addresses, UDP port and group.
// name is the name of the pod's link to the VPC.
func podFromKernel(ns *nl.NS, name string) (*pod, error) {
	links, err := ns.Links()
	p := &pod{ns: ns, nic: plugin.NIC{Name: name}, links: []string{name}}
	for _, l := range links {
		if local, port, is := l.Tunnel(); is && (l.Name == Link4 || l.Name == Link6) {
			p.addrs, p.port, p.group = append(p.addrs, local), port, l.Group
		}
	}
	return p, err
}

// tableRoles reports whether a pod has the nftables table of a router, and whether it has the nftables table of a
// client.
func (p *pod) tableRoles() (router, client bool) {
	has := func(c nl.Chain) bool {
		return nl.Table{Family: "inet", Name: Table, Chains: []nl.Chain{c}}.Intact(p.ns) == nil
	}
	return has(nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100}),
		has(nl.Chain{Name: "output", Type: "route", Hook: "output", Priority: nl.PriorityMangle})
}

func (p *pod) missingError() error {
	if len(p.addrs) == 0 {
		return fmt.Errorf("the links %s and %s of the tunnel are gone: %w", Link4, Link6, fs.ErrNotExist)
	}
	router, _ := p.tableRoles()
	var objects []nl.Object
	var families []nl.Family
	for _, a := range p.addrs {
		f := nl.FamilyOf(a)
		families = append(families, f)
		objects = append(append(objects, p.tunnelObjects(f, 0)...), nl.FOU{Local: a, Port: p.port})
		if router {
			objects = slices.Concat(objects, []nl.Object{p.routeBack(f)}, p.routerRules(f), p.forwardingSysctls(f))
		} else {
			objects = append(objects, p.clientRules(f)...)
		}
	}
	err := errors.Join(checkedWiring(nl.Steps(p.ns, objects)).Check(), p.lostFamilyError(families))
	if router {
		return errors.Join(err, p.routerTable(nil, Egress{}).Intact(p.ns))
	}
	return errors.Join(err, p.clientTable(nil, nil).Intact(p.ns), p.lostRoutesError(families))
}

// lostFamilyError returns an error if the pod has rules of a family, but no tunnel of this family.
func (p *pod) lostFamilyError(families []nl.Family) (failed error) {
	rules, err := p.ns.Rules()
	for _, r := range rules {
		if r.Pref == prefOut && r.Protocol == nl.RouteProtocol && !slices.Contains(families, r.Family) {
			failed = errors.Join(failed, fmt.Errorf("the link %s of the tunnel is gone: %w", linkName(r.Family),
				fs.ErrNotExist))
		}
	}
	return errors.Join(err, failed)
}

// lostRoutesError returns an error about the client's destinations that have no route through the tunnel, or no
// refusing route.
func (p *pod) lostRoutesError(families []nl.Family) (failed error) {
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
		failed = errors.Join(failed, differenceError(without, by, "there is no route by the tunnel"),
			differenceError(by, without, "no route refuses packets if the tunnel is gone, so packets would then leave "+
				"with the pod's own address"))
		if len(by) == 0 {
			failed = errors.Join(failed, fmt.Errorf("%v: no route leads into the tunnel: %w", f, fs.ErrNotExist))
		}
	}
	return failed
}

// differenceError returns an error about each prefix that is in dsts and not in others. meaning explains the
// difference.
func differenceError(dsts, others map[netip.Prefix]bool, meaning string) (failed error) {
	for dst := range dsts {
		if !others[dst] {
			failed = errors.Join(failed, fmt.Errorf("destination %s: %s: %w", dst, meaning, fs.ErrNotExist))
		}
	}
	return failed
}
