// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A Renewal makes a running client or router follow the present configuration. It makes the pod's objects equal to
// those that an ADD would make now, so it also puts back lost objects.
//
// At each moment, even after a kill, a packet takes either the path of the earlier configuration or the path of the
// present one. The order of the steps ensures this:
//
//   - First, the renewal adds links, rules and ports that the pod lacks. For example, a pod lacks all objects for IPv6
//     if the egress had no IPv6 gateway before.
//   - Then it adds new and changed routes, the longest prefix first, each route in a request of its own. So an address
//     has its old path until it has its own new route.
//   - Then it replaces the nftables table in one transaction. Its seal shows which configuration the pod has.
//   - Last, it deletes superfluous routes, the shortest prefix first. So an address has its old path until the last
//     superfluous route to it is gone.
//
// A router's routes do not depend on the configuration: only its nftables table changes.
type Renewal struct {
	ns      *nl.NS
	Role    string
	missing nl.Wiring
	add     []nl.Route // new and changed routes, in the order of compareOrder
	table   nl.Table
	lost    bool // the pod has no table
	other   bool // the pod's table was made from another configuration
	stale   []nl.Route
	gone    nl.Wiring // the pod's objects of families that have no gateway any more
}

// ErrRole is the error that [Outdated] returns if the configuration now gives the pod another role. A running pod keeps
// the role that its ADD gave it.
var ErrRole = errors.New("the configuration now gives the pod another role")

// Outdated compares the objects of a running pod with the objects that the request's configuration gives the pod. If
// the pod has no role, and the configuration gives it no role, Outdated returns nil.
func Outdated(r *plugin.Request[Config], ns *nl.NS) (*Renewal, error) {
	role, refused := r.Config.roleOf(r.Pod)
	shown, err := podFromKernel(ns, r.IfName)
	if err != nil {
		return nil, err
	}
	has := shown.kernelRole()
	switch {
	case has == "" && (refused != nil || role.isNone()):
		return nil, nil
	case refused != nil:
		return nil, fmt.Errorf("%w: %w", ErrRole, refused)
	case has != role.name():
		return nil, fmt.Errorf("%w: the pod is %s, and would become %s", ErrRole, cmp.Or(has, neither),
			cmp.Or(role.name(), neither))
	}
	p, err := readPod(r, ns)
	if err != nil || p == nil {
		return nil, err
	}
	if err := p.checkSamePod(shown, r); err != nil {
		return nil, err
	}
	all := p.routes
	p.routes = nil
	fixed, err := p.wiring(r, role)
	if err != nil {
		return nil, err
	}
	p.routes = all
	w, err := p.wiring(r, role)
	if err != nil {
		return nil, err
	}
	x := &Renewal{ns: ns, Role: has}
	return x, x.compare(p, shown, w, routesOf(fixed))
}

func routesOf(w nl.Wiring) (all []nl.Route) {
	for _, s := range w {
		if r, is := s.Object.(nl.Route); is && r.Table == TableOut {
			all = append(all, inKernelForm(r))
		}
	}
	return all
}

const neither = "neither client nor router"

func (r role) name() string {
	switch {
	case r.router != "":
		return Router
	case len(r.client) > 0:
		return Client
	}
	return ""
}

// kernelRole returns the role that the pod's nftables table shows, or else the role that the pod's tunnels and rules
// show.
func (p *pod) kernelRole() string {
	switch router, client := p.tableRoles(); {
	case router:
		return Router
	case client:
		return Client
	}
	s, _ := Read(p.ns) // ignore the error, because the table may be missing
	return s.Role
}

// checkSamePod compares the pod as the kernel shows it (shown) with the pod of the request. It returns an error about a
// difference that a renewal cannot remove. If a link of the pod is lost, it also returns an error, because the routes
// of this link are unknown.
func (p *pod) checkSamePod(shown *pod, r *plugin.Request[Config]) error {
	if len(shown.addrs) > 0 && shown.group != p.group {
		return fmt.Errorf("the tunnels belong to another attachment: their group is %d, and the group of this "+
			"attachment is %d",
			shown.group, p.group)
	}
	if len(shown.addrs) > 0 && shown.port != p.port {
		return fmt.Errorf("the pod's tunnels use UDP port %d, and egressPort is %d: delete the pod", shown.port, p.port)
	}
	for _, a := range shown.addrs {
		if !slices.Contains(p.addrs, a) {
			return fmt.Errorf("a tunnel has the address %s, and the pod has the addresses %v", a, p.addrs)
		}
	}
	for _, i := range r.Prev.Interfaces {
		if i.Sandbox == "" {
			continue
		}
		if _, err := p.ns.LinkByName(i.Name); err != nil {
			return fmt.Errorf("the pod has lost a link, so the pod's egress cannot be compared with the "+
				"configuration: %w", err)
		}
	}
	return nil
}

// compare finds the differences between the pod as the kernel shows it (shown) and the wiring w that an ADD would make
// now. fixed are the routes of w that do not depend on the pod's own routes.
func (x *Renewal) compare(p, shown *pod, w nl.Wiring, fixed []nl.Route) error {
	unfinished := map[nl.Family]bool{}
	for _, f := range nl.Families {
		unfinished[f] = p.isUnfinished(f, shown)
	}
	for _, s := range w {
		switch o := s.Object.(type) {
		case nl.Route:
			if o.Table == TableOut {
				continue
			}
		case nl.Table:
			x.table, x.lost = o, errors.Is(o.Check(p.ns), fs.ErrNotExist)
			x.other = o.Check(p.ns) != nil || !o.Sealed(p.ns)
			continue
		case nl.Sysctl:
			if unfinished[familyOf(o)] {
				x.missing = append(x.missing, s)
				continue
			}
		case nl.Tunnel:
			if slices.Contains(shown.addrs, o.Local) {
				s.Object = x.wantedState(o)
			}
		}
		if isAbsent(s) {
			x.missing = append(x.missing, s)
		}
	}
	has, err := p.ns.Routes(nl.RouteFilter{Table: TableOut, Protocol: nl.RouteProtocol})
	for i := range has {
		has[i] = inKernelForm(has[i])
	}
	x.compareRoutes(has, routesOf(w), fixed)
	x.gone = p.goneFamilies(shown, w)
	return err
}

// wantedState returns the state that a tunnel of the pod must have. Normally, this state allows any MTU, because
// another plugin may have changed the MTU. But if the pod's table is from another configuration, the tunnel must get
// the MTU of the present configuration.
func (x *Renewal) wantedState(t nl.Tunnel) nl.Up {
	if !x.other {
		t.MTU = 0
	}
	return nl.Up{Dev: t.Name, MTU: t.MTU}
}

// isUnfinished reports whether the pod may lack an object of a family. The UDP port is added last. So if this port is
// missing, the pod did not have the family before, or a renewal was killed.
func (p *pod) isUnfinished(f nl.Family, shown *pod) bool {
	port := nl.FOU{Local: p.addr(f), Port: p.port}
	return !slices.Contains(shown.addrs, port.Local) || isAbsent(nl.Step{NS: p.ns, Object: port})
}

func familyOf(s nl.Sysctl) nl.Family {
	if strings.HasPrefix(s.Key, "net/ipv6/") {
		return nl.IPv6
	}
	return nl.IPv4
}

// isAbsent reports whether the pod does not have an object. It ignores values that other plugins may change, see
// [checkedWiring].
func isAbsent(s nl.Step) bool { return checkedWiring(nl.Wiring{s}).Check() != nil }

// compareRoutes finds the routes to add and the routes to delete. The pod's own routes may change while the pod runs.
// If the prefix of such a route is within a destination, the argument "wanted" has a throw route for this prefix.
// TableOut may lack this throw route. If coveringRoute also returns a throw route, compareRoutes does not add the
// missing route: packets then stay out of the tunnel anyway.
func (x *Renewal) compareRoutes(present, wanted, fixed []nl.Route) {
	spared := func(r nl.Route) bool {
		return r.Type == "throw" && !slices.Contains(fixed, r) && coveringRoute(wanted, r).Type == "throw"
	}
	for _, r := range wanted {
		if !slices.Contains(present, r) && !slices.Contains(x.add, r) && !spared(r) {
			x.add = append(x.add, r)
		}
	}
	for _, r := range present {
		if !slices.ContainsFunc(wanted, func(o nl.Route) bool { return o.Dst == r.Dst && o.Metric == r.Metric }) {
			x.stale = append(x.stale, r) // all other routes are right, or will be replaced
		}
	}
	slices.SortStableFunc(x.add, compareOrder)
	slices.SortStableFunc(x.stale, func(a, b nl.Route) int { return compareOrder(b, a) })
}

// coveringRoute returns the route that packets to r's prefix would take without the routes to this prefix. This route
// has the longest of the shorter prefixes that contain r's prefix. Without such a route, coveringRoute returns the zero
// route.
func coveringRoute(all []nl.Route, r nl.Route) (found nl.Route) {
	for _, o := range all {
		if o.Dst.Bits() < r.Dst.Bits() && o.Dst.Contains(r.Dst.Addr()) &&
			(!found.Dst.IsValid() || o.Dst.Bits() > found.Dst.Bits() ||
				o.Dst == found.Dst && o.Metric < found.Metric) {
			found = o
		}
	}
	return found
}

// compareOrder compares two routes by the order in which a renewal adds them: the longest prefix first. Among equally
// long prefixes, the order is: throw routes, routes to IPv6 gateways, routes through the tunnel, refusing routes.
func compareOrder(a, b nl.Route) int {
	return cmp.Or(cmp.Compare(b.Dst.Bits(), a.Dst.Bits()), cmp.Compare(rank(a), rank(b)), a.Dst.Compare(b.Dst))
}

func rank(r nl.Route) int {
	switch {
	case r.Type == "throw":
		return 0
	case r.Type == "unreachable":
		return 3
	case r.Via.IsValid():
		return 2
	}
	return 1
}

// inKernelForm returns the route r as the kernel shows it.
func inKernelForm(r nl.Route) nl.Route {
	r.Dst = r.Dst.Masked()
	if r.Dst.Addr().Is6() && r.Metric == 0 {
		r.Metric = metric6
	}
	return r
}

// metric6 is the kernel's default metric of an IPv6 route (IP6_RT_PRIO_USER).
const metric6 = 1024

// goneFamilies returns the pod's objects of each family whose tunnel is in the pod, but not in the wiring w.
func (p *pod) goneFamilies(shown *pod, w nl.Wiring) (gone nl.Wiring) {
	for _, a := range shown.addrs {
		f := nl.FamilyOf(a)
		if slices.ContainsFunc(w, func(s nl.Step) bool {
			t, is := s.Object.(nl.Tunnel)
			return is && t.Name == linkName(f)
		}) {
			continue
		}
		// Del deletes the tunnel last, because the tunnel shows that there are objects to delete.
		gone = append(gone, nl.Step{NS: p.ns, Object: nl.Tunnel{Name: linkName(f), Local: a, Port: shown.port}})
		for pref := prefPast; pref < prefPast+rules; pref++ {
			gone = append(gone, nl.Step{NS: p.ns, Object: nl.Rule{Pref: pref, Family: f, Protocol: nl.RouteProtocol}})
		}
		gone = append(gone, nl.Step{NS: p.ns, Object: nl.FOU{Local: a, Port: shown.port}})
	}
	return gone
}

// None reports whether the pod needs no change.
func (x *Renewal) None() bool {
	return len(x.missing)+len(x.add)+len(x.stale)+len(x.gone) == 0 && !x.other
}

// String describes the changes that Apply makes.
func (x *Renewal) String() string {
	var parts []string
	list := func(word string, routes []nl.Route, dst func(nl.Route) bool) {
		var all []string
		for _, r := range routes {
			if dst(r) {
				all = append(all, r.Dst.String())
			}
		}
		if len(all) > 0 {
			parts = append(parts, word+" "+strings.Join(all, ", "))
		}
	}
	open := func(r nl.Route) bool { return r.Via.IsValid() }
	except := func(r nl.Route) bool { return r.Type == "throw" }
	list("new or changed destinations:", x.add, open)
	list("removed destinations:", x.stale, open)
	list("new exceptions:", x.add, except)
	list("removed exceptions:", x.stale, except)
	for _, s := range x.missing {
		parts = append(parts, "missing: "+s.Object.String())
	}
	for _, s := range x.gone {
		if t, is := s.Object.(nl.Tunnel); is {
			parts = append(parts, "tunnel without a gateway: "+t.Name)
		}
	}
	if x.other && len(parts) == 0 {
		parts = append(parts, "rules of another configuration or release")
	}
	if len(parts) == 0 { // only refusing routes, or routes to IPv6 gateways, differ
		for _, r := range x.add {
			parts = append(parts, "missing: "+r.String())
		}
		for _, r := range x.stale {
			parts = append(parts, "superfluous: "+r.String())
		}
	}
	return strings.Join(parts, "; ")
}

// Apply makes the changes that Outdated has found necessary.
func (x *Renewal) Apply() error {
	if x.lost { // the table must exist before packets come out of a tunnel
		if err := x.putTable(); err != nil {
			return err
		}
	}
	if err := x.missing.Add(); err != nil {
		return unavailable(err)
	}
	for _, r := range x.add {
		r.Replace = true
		if err := r.Add(x.ns); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s: %w", r, err)
		}
	}
	if err := x.putTable(); err != nil {
		return err
	}
	for _, r := range x.stale {
		if err := r.Del(x.ns); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("delete %s: %w", r, err)
		}
	}
	return x.gone.Del()
}

func (x *Renewal) putTable() error {
	if err := x.table.Put(x.ns); err != nil && !errors.Is(err, fs.ErrExist) {
		return unavailable(err)
	}
	return nil
}
