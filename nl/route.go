// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Route is a route to Dst that uses the link Dev. If Dst is not on the link itself, packets go to the next hop Via.
type Route struct {
	Dst      netip.Prefix
	Via      netip.Addr
	Dev      string
	Table    uint32 // 0 is main
	Src      netip.Addr
	Metric   int
	MTU      int
	OnLink   bool   // assume that Via is on the link, even if no other route leads to Via
	Type     string // "" is unicast; routes of the types unreachable and blackhole have no Dev
	Protocol int    // 0 is boot, as with ip(8)
	// With Replace, Add replaces another route to Dst, such as the route of a pod that has ended.
	Replace bool
}

func (r Route) String() string {
	name := "ip route add"
	switch {
	case r.Dst.Addr().Is6() && r.Replace:
		name = "ip -6 route replace"
	case r.Dst.Addr().Is6():
		name = "ip -6 route add"
	case r.Replace:
		name = "ip route replace"
	}
	dst := r.Dst.String()
	if r.Dst.Bits() == 0 {
		dst = "default"
	}
	c := command(name).flag(r.Type, r.Type != "").word(dst)
	if r.Via.IsValid() {
		c.option("via", r.Via.String())
	}
	c.option("dev", r.Dev).flag("onlink", r.OnLink).flag("scope link", r.scope() == unix.RT_SCOPE_LINK)
	if r.Src.IsValid() {
		c.option("src", r.Src.String())
	}
	c.number("metric", r.Metric).number("mtu", r.MTU)
	if r.table() != unix.RT_TABLE_MAIN {
		c.number("table", r.table())
	}
	return c.number("proto", r.Protocol).String()
}

func (r Route) table() int { return int(cmp.Or(r.Table, unix.RT_TABLE_MAIN)) }

// scope returns "link" for an IPv4 route without a next hop, and "global" for other IPv4 routes. IPv6 routes have no
// scope.
func (r Route) scope() int {
	if r.Type == "" && !r.Via.IsValid() && r.Dst.Addr().Is4() {
		return unix.RT_SCOPE_LINK
	}
	return unix.RT_SCOPE_UNIVERSE
}

func (r Route) Add(n *NS) error {
	msg, attrs, err := r.netlinkMessage(n)
	if err != nil {
		return err
	}
	err = n.applyChange(unix.RTM_NEWROUTE, addNew, msg, attrs...)
	if !r.Replace || !errors.Is(err, fs.ErrExist) {
		return err
	}
	if r.Check(n) == nil {
		return errSame
	}
	return n.applyChange(unix.RTM_NEWROUTE, addReplace, msg, attrs...)
}

// Del deletes the route, but no other route to Dst.
func (r Route) Del(n *NS) error {
	msg, attrs, err := r.netlinkMessage(n)
	if err != nil {
		return err
	}
	return n.applyChange(unix.RTM_DELROUTE, 0, msg, attrs...)
}

func (r Route) netlinkMessage(n *NS) (*nl.RtMsg, []attribute, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Dst_len, msg.Scope = uint8(FamilyOf(r.Dst.Addr())), uint8(r.Dst.Bits()), uint8(r.scope())
	msg.Protocol, msg.Type = uint8(cmp.Or(r.Protocol, unix.RTPROT_BOOT)), unix.RTN_UNICAST
	if r.OnLink {
		msg.Flags = unix.RTNH_F_ONLINK
	}
	if r.Type != "" {
		t, ok := routeTypes.numberOf(r.Type)
		if !ok {
			return nil, nil, fmt.Errorf("unknown type of route %q", r.Type)
		}
		msg.Type = uint8(t)
	}
	attrs := []attribute{attrAddr(unix.RTA_DST, r.Dst.Addr()), attr32(unix.RTA_TABLE, uint32(r.table()))}
	if r.Via.IsValid() {
		attrs = append(attrs, attrAddr(unix.RTA_GATEWAY, r.Via))
	}
	if r.Src.IsValid() {
		attrs = append(attrs, attrAddr(unix.RTA_PREFSRC, r.Src))
	}
	if r.Metric > 0 {
		attrs = append(attrs, attr32(unix.RTA_PRIORITY, uint32(r.Metric)))
	}
	if r.MTU > 0 {
		attrs = append(attrs, nest(unix.RTA_METRICS, attr32(unix.RTAX_MTU, uint32(r.MTU))))
	}
	if r.Dev == "" {
		return msg, attrs, nil
	}
	index, err := n.linkIndex(r.Dev)
	return msg, append(attrs, attr32(unix.RTA_OIF, uint32(index))), err
}

// routeTypes has the types of routes that are not unicast (rtnetlink(7)).
var routeTypes = nameTable{
	{"local", unix.RTN_LOCAL}, {"broadcast", unix.RTN_BROADCAST}, {"anycast", unix.RTN_ANYCAST},
	{"multicast", unix.RTN_MULTICAST},
	{"blackhole", unix.RTN_BLACKHOLE}, {"unreachable", unix.RTN_UNREACHABLE}, {"prohibit", unix.RTN_PROHIBIT},
	{"throw", unix.RTN_THROW},
}

// Check returns an error if the table does not have the route. Check ignores the protocol. If r has no metric, Check
// ignores the metric. If r has no MTU, Check ignores the MTU.
func (r Route) Check(n *NS) error {
	var index int
	if r.Dev != "" {
		i, err := n.linkIndex(r.Dev)
		if err != nil {
			return err
		}
		index = i
	}
	found, err := n.selectRoutes(RouteFilter{Table: uint32(r.table())}, FamilyOf(r.Dst.Addr()), index)
	if err != nil {
		return err
	}
	want := r
	want.Table, want.Dev, want.Protocol, want.Replace = uint32(r.table()), "", 0, false
	for _, f := range found {
		got := f.Route
		got.Protocol = 0
		if want.Metric == 0 { // IPv6 turns 0 into 1024
			got.Metric = 0
		}
		if want.MTU == 0 { // an MTU that is smaller than necessary does no harm
			got.MTU = 0
		}
		if f.index == index && got == want {
			return nil
		}
	}
	return r.missingError(n)
}

// missingError returns the error of Check if the route is missing. If the table has another route to Dst, the error
// names that route.
func (r Route) missingError(n *NS) error {
	all, err := n.Routes(RouteFilter{Table: uint32(r.table()), Family: FamilyOf(r.Dst.Addr())})
	if i := slices.IndexFunc(all, func(o Route) bool { return o.Dst == r.Dst }); err == nil && i >= 0 {
		return fmt.Errorf("there is another route, %s: %w", all[i], fs.ErrNotExist)
	}
	return fmt.Errorf("there is no such route: %w", fs.ErrNotExist)
}

// MainTable is the number of the routing table main.
const MainTable = unix.RT_TABLE_MAIN

// A RouteFilter selects routes by their properties. A field with the zero value selects all routes.
type RouteFilter struct {
	Family   Family
	Table    uint32
	Dev      string
	Protocol int
}

// Matches reports whether the filter selects a route.
func (f RouteFilter) Matches(r Route) bool {
	return (f.Family == 0 || f.Family == FamilyOf(r.Dst.Addr())) && (f.Table == 0 || int(f.Table) == r.table()) &&
		(f.Dev == "" || f.Dev == r.Dev) && (f.Protocol == 0 || f.Protocol == r.Protocol)
}

// Routes lists the routes that a filter selects, IPv4 first. It lists routes of the table local only if f.Table names
// this table.
func (n *NS) Routes(f RouteFilter) ([]Route, error) {
	all, err := n.listRoutes(f)
	if err != nil {
		return nil, fmt.Errorf("%s: list routes: %w", n.Name, err)
	}
	return all, nil
}

func (n *NS) listRoutes(f RouteFilter) (all []Route, err error) {
	var index int
	if f.Dev != "" {
		if index, err = n.linkIndex(f.Dev); err != nil {
			return nil, err
		}
	}
	var found []kernelRoute
	for _, family := range Families {
		if f.Family != 0 && f.Family != family {
			continue
		}
		more, err := n.selectRoutes(f, family, index)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	if len(found) == 0 {
		return nil, nil
	}
	_, names, err := n.indexOrNames(f.Dev)
	for _, k := range found {
		k.Dev = names[k.index]
		all = append(all, k.Route)
	}
	return all, err
}

// RoutesIn lists the routes of a table and a family. Only routes that use the link dev have Dev set. For the names of
// other links, RoutesIn would need a list of all links, which is slow on a node with many pods.
func (n *NS) RoutesIn(table uint32, f Family, dev string) (all []Route, err error) {
	index, err := n.linkIndex(dev)
	if err != nil {
		return nil, err
	}
	found, err := n.selectRoutes(RouteFilter{Table: table}, f, 0)
	for _, k := range found {
		if k.index == index {
			k.Dev = dev
		}
		all = append(all, k.Route)
	}
	return all, err
}

type kernelRoute struct {
	Route // without Dev
	index int
}

// selectRoutes returns the routes of a family that match f and use the link with the given index. The index 0 stands
// for all links. After [NS.List], selectRoutes takes the routes from the listCache.
func (n *NS) selectRoutes(f RouteFilter, family Family, index int) ([]kernelRoute, error) {
	if n.listCache != nil && n.listCache.hasRoutesBy(index) && f.Table != unix.RT_TABLE_LOCAL {
		return n.listCache.selectRoutes(n, f, family, index)
	}
	return n.requestRoutes(n.sendRequest, f, family, index)
}

// exactRoutes lists the routes of both families, and fails if the kernel's list is perhaps incomplete. The field Dev of
// these routes is empty: for the names of links, exactRoutes would need a list of all links. This list is slow: for
// each veth pair, the kernel searches all namespaces for the other end.
func (n *NS) exactRoutes(f RouteFilter) (all []kernelRoute, err error) {
	for _, family := range Families {
		routes, err := n.requestRoutes(n.sendExact, f, family, 0)
		if err != nil {
			return nil, fmt.Errorf("%s: list routes: %w", n.Name, err)
		}
		all = append(all, routes...)
	}
	return all, nil
}

// requestRoutes is like selectRoutes, but always asks the kernel.
func (n *NS) requestRoutes(send sender, f RouteFilter, family Family, index int) ([]kernelRoute, error) {
	msg := &nl.RtMsg{}
	msg.Family, msg.Protocol = uint8(family), uint8(f.Protocol)
	var attrs []attribute
	if f.Table != 0 {
		attrs = append(attrs, attr32(unix.RTA_TABLE, f.Table))
	}
	if index != 0 {
		attrs = append(attrs, attr32(unix.RTA_OIF, uint32(index)))
	}
	msgs, err := send(unix.NETLINK_ROUTE, unix.RTM_GETROUTE, unix.NLM_F_DUMP, unix.RTM_NEWROUTE, msg, attrs...)
	if isNotExist(err) { // the kernel does not have the table, or the family
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []kernelRoute
	for _, m := range msgs {
		// if IPv6 is disabled (ipv6.disable=1), the kernel answers a request for IPv6 with all families (rtnl_dump_all)
		if Family(m[0]) != family {
			continue
		}
		r := parseRoute(m)
		switch {
		case f.Table != 0 && r.Table != f.Table, f.Table == 0 && r.Table == unix.RT_TABLE_LOCAL:
		case f.Protocol != 0 && r.Protocol != f.Protocol, index != 0 && r.index != index:
		default:
			found = append(found, r)
		}
	}
	return found, nil
}
