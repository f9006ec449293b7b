// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A node has what an ADD must know about the node.
type node struct {
	mtu            int          // of hostInterface
	addrs          []netip.Addr // of hostInterface, but not link-local; in each family, the primary address is first
	subnet         netip.Prefix // the IPv4 subnet of the boot ENI
	acceptRA       bool         // accept_ra of hostInterface is 1: no router advertisements if the node forwards IPv6
	forwards       bool         // hostInterface forwards IPv4
	limitsRefusals bool         // the kernel's ICMPv6 ratelimit is longer than refusalInterval: see nodewiring.go
}

// wantsHost is the hint to the operator if the node has no link with the name hostInterface.
const wantsHost = "set hostInterface to the name of the boot ENI's link on this node, see 'ip route show default'"

// readNode reads the node. In the configuration, it replaces an alternative name in hostInterface by the link's name,
// because netfilter and /proc/sys do not accept alternative names.
func readNode(ns *nl.NS, c *Config) (node, error) {
	l, err := ns.SeenLink(c.HostInterface)
	if errors.Is(err, fs.ErrNotExist) {
		return node{}, plugin.Errorf(plugin.CodeInvalid, wantsHost,
			"hostInterface: %w", err)
	}
	if err != nil {
		return node{}, fmt.Errorf("hostInterface: %w", err)
	}
	c.HostInterface = l.Name
	n := node{mtu: l.MTU, forwards: l.Forwards}
	found, err := nodeAddrs(ns, c.HostInterface)
	if err != nil {
		return n, err
	}
	for _, a := range found {
		n.addrs = append(n.addrs, a.Prefix.Addr())
	}
	if len(n.addrs) == 0 {
		return n, fmt.Errorf("hostInterface: %s has no addresses", c.HostInterface)
	}
	if first := found[0].Prefix; first.Addr().Is4() {
		n.subnet = first.Masked()
	}
	if n.hasFamily(nl.IPv6) {
		v, _ := ns.Sysctl(conf6(c.HostInterface) + "accept_ra")
		n.acceptRA = v == "1"
		v, _ = ns.Sysctl(ratelimit6)
		ms, _ := strconv.Atoi(v)
		n.limitsRefusals = ms > refusalInterval
	}
	return n, nil
}

func (n node) forwardsIPv6(c Config) bool { return c.IPMasq && n.hasFamily(nl.IPv6) }

func conf4(link string) string { return "net/ipv4/conf/" + link + "/" }
func conf6(link string) string { return "net/ipv6/conf/" + link + "/" }

// nodeAddrs returns the addresses of hostInterface without link-local ones and duplicates. IPv4 comes before IPv6, and
// in each family, the primary address is first.
//
// Pods use the node's primary address, which is the instance's own address. keepalived and other programs add
// addresses, and move them to another node. The kernel's order does not show the primary address: an address that is
// removed and added again becomes the last in the list.
func nodeAddrs(ns *nl.NS, link string) ([]nl.Addr, error) {
	found, err := ns.Addrs(link)
	if err != nil {
		return nil, fmt.Errorf("hostInterface: %w", err)
	}
	var all []nl.Addr
	for _, f := range nl.Families {
		of, err := sortedAddrs(ns, link, f, found)
		if err != nil {
			return nil, fmt.Errorf("hostInterface: %w", err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// sortedAddrs selects and sorts the addresses of one family for nodeAddrs.
func sortedAddrs(ns *nl.NS, link string, f nl.Family, found []nl.Addr) ([]nl.Addr, error) {
	of := slices.DeleteFunc(slices.Clone(found), func(a nl.Addr) bool {
		return nl.FamilyOf(a.Prefix.Addr()) != f || a.Prefix.Addr().IsLinkLocalUnicast() || a.Duplicate
	})
	if f == nl.IPv6 {
		slices.Reverse(of) // the oldest first, as in IPv4
	}
	if len(of) > 1 {
		src, err := ns.DefaultSource(link, f)
		if err != nil {
			return nil, err
		}
		slices.SortStableFunc(of, func(a, b nl.Addr) int { return compareAddrs(a, b, src) })
	}
	return of, nil
}

// compareAddrs orders two addresses: the address that is more likely to be the instance's own comes first.
//
// Deprecated addresses come last, but are better than none. keepalived adds deprecated IPv6 addresses, and an address
// from DHCP becomes deprecated when its lease ends. Tentative addresses come before deprecated ones, and after all
// others. Among the others, the source of the default route comes first.
//
// If these comparisons do not decide, the form of the address decides. The instance's own address has a lifetime. Its
// prefix is as long as that of the subnet, or is a /128 if the address is from DHCPv6. An address that another program
// has added has no lifetime, and is a /32, a /128, or secondary.
func compareAddrs(a, b nl.Addr, src netip.Addr) int {
	return cmp.Or(
		trueLast(a.Deprecated, b.Deprecated),
		trueLast(a.Tentative, b.Tentative),
		trueLast(a.Prefix.Addr() != src, b.Prefix.Addr() != src),
		cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()),
		trueLast(a.Secondary, b.Secondary),
		trueLast(!a.Dynamic, !b.Dynamic),
	)
}

func trueLast(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// primaries returns the node with only the primary address of each family. Other programs add and remove its other
// addresses.
func (n node) primaries() node {
	var addrs []netip.Addr
	for _, f := range nl.Families {
		if a := n.primaryAddr(f); a.IsValid() {
			addrs = append(addrs, a)
		}
	}
	n.addrs = addrs
	return n
}

// forPod returns the node with only the addresses of the pod's families.
func (n node) forPod(p pair) node {
	n.addrs = slices.DeleteFunc(slices.Clone(n.addrs), func(a netip.Addr) bool { return !p.hasFamily(nl.FamilyOf(a)) })
	return n
}

func (n node) primaryAddr(f nl.Family) netip.Addr { return nl.FirstAddr(n.addrs, f) }

func (n node) hasFamily(f nl.Family) bool { return n.primaryAddr(f).IsValid() }

// checkFamilies returns an error if the pod has a family in which the node has no address: node and pod could not reach
// each other. The runtime should try again, because the node may get its address later: DHCPv6 is slower than DHCP.
func (n node) checkFamilies(r *request) error {
	for _, a := range r.addrs {
		f, enable := nl.FamilyOf(a), ""
		if f == nl.IPv6 {
			enable = ", and set net.ipv6.conf.all.disable_ipv6 to 0"
		}
		if !n.hasFamily(f) {
			return plugin.Errorf(plugin.CodeTryAgain,
				fmt.Sprintf("give the boot ENI an %s address%s; or leave %[1]s out of ipFamilies", f, enable),
				"hostInterface: %s has no %s address, and the pod has %s", r.Config.HostInterface, f, a)
		}
	}
	return nil
}

// withPrimary returns the node with its addresses in another order: those that are also in addrs come first. So in each
// family, the first of these becomes the primary address. If the node has lost an address of addrs, this address has no
// effect.
func (n node) withPrimary(addrs []netip.Addr) node {
	n.addrs = slices.Clone(n.addrs)
	slices.SortStableFunc(n.addrs, func(a, b netip.Addr) int {
		return trueLast(!slices.Contains(addrs, a), !slices.Contains(addrs, b))
	})
	return n
}

// hasSeveralAddrs reports whether the node has several addresses of a family, so its primary address may have changed.
func (n node) hasSeveralAddrs() bool { return len(n.addrs) > len(n.primaries().addrs) }

// nodeWhenMade returns the node with the primary addresses that it had when the pod was made. They are the sources of
// the node's routes to the pod.
func (s *scene) nodeWhenMade(p pair) (node, error) {
	if !s.node.hasSeveralAddrs() {
		return s.node, nil
	}
	routes, err := s.nodeNS.Routes(nl.RouteFilter{Table: nl.MainTable, Dev: p.veth.Name})
	var sources []netip.Addr
	for _, r := range routes {
		if slices.Contains(p.addrs, r.Dst.Addr()) {
			sources = append(sources, r.Src)
		}
	}
	return s.node.withPrimary(sources), err
}

// asInTable returns the node with the primary addresses that it had when the last pod was made. The ADD of that pod
// wrote these addresses into the nftables table for all pods.
func (n node) asInTable(r *request) (node, error) {
	if !n.hasSeveralAddrs() {
		return n, nil
	}
	has, err := nodeTable(r, n).Has(r.nodeNS)
	if err != nil {
		return n, err
	}
	return n.withPrimary(slices.DeleteFunc(slices.Clone(n.addrs), func(a netip.Addr) bool {
		return !has(postroutingChain(r.Config, a))
	})), nil
}
