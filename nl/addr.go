// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An Addr is an address of a link, with the length of the subnet's prefix.
type Addr struct {
	Prefix netip.Prefix
	Dev    string
	// NoDAD makes an IPv6 address usable without duplicate address detection. The detection is not necessary, because
	// EC2 gives an address to one ENI only.
	NoDAD bool
	// With Apart, the kernel chooses the address as the source of a packet only if no other address fits. Programs can
	// still bind to the address. Such an IPv4 address has the scope "link" (see inet_select_addr), and such an IPv6
	// address is deprecated (see RFC 6724, section 5, rule 3). Also, the kernel adds no route to the address's subnet
	// (IFA_F_NOPREFIXROUTE).
	Apart bool

	// NS.Addrs sets the fields below, and Add ignores them.
	Secondary  bool // IPv4: the link already had an address of the same subnet; IPv6: a temporary address (RFC 8981)
	Dynamic    bool // the address has a lifetime, like an address from DHCP
	Deprecated bool // new connections do not use the address, because its preferred lifetime (preferred_lft) is over
	Tentative  bool // IPv6: duplicate address detection has not ended
	Duplicate  bool // IPv6: another host has the address
}

func (a Addr) String() string {
	c := command("ip addr add").word(a.Prefix.String()).option("dev", a.Dev).flag("nodad", a.NoDAD)
	c.flag("scope link", a.Apart && a.Prefix.Addr().Is4()).flag("preferred_lft 0", a.Apart && a.Prefix.Addr().Is6())
	return c.flag("noprefixroute", a.Apart).String()
}

func (a Addr) Add(n *NS) error { return a.sendMessage(n, unix.RTM_NEWADDR, addNew) }

func (a Addr) Del(n *NS) error { return a.sendMessage(n, unix.RTM_DELADDR, 0) }

func (a Addr) sendMessage(n *NS, typ, flags int) error {
	index, err := n.linkIndex(a.Dev)
	if err != nil {
		return err
	}
	addr := a.Prefix.Addr()
	msg := nl.NewIfAddrmsg(int(FamilyOf(addr)))
	msg.Index, msg.Prefixlen = uint32(index), uint8(a.Prefix.Bits())
	if a.NoDAD && addr.Is6() {
		msg.Flags = unix.IFA_F_NODAD
	}
	attrs := []attribute{attrAddr(unix.IFA_LOCAL, addr), attrAddr(unix.IFA_ADDRESS, addr)}
	if a.Apart {
		attrs = append(attrs, attr32(unix.IFA_FLAGS, uint32(msg.Flags)|unix.IFA_F_NOPREFIXROUTE))
		if addr.Is4() {
			msg.Scope = unix.RT_SCOPE_LINK
		} else {
			attrs = append(attrs, attr(unix.IFA_CACHEINFO, deprecatedLifetimes()))
		}
	}
	if b, ok := broadcastAddr(a.Prefix); ok {
		attrs = append(attrs, attrAddr(unix.IFA_BROADCAST, b))
	}
	return n.applyChange(typ, flags, msg, attrs...)
}

// deprecatedLifetimes returns a struct ifa_cacheinfo of linux/if_addr.h for a deprecated address: the valid lifetime is
// infinite, and the preferred lifetime is 0.
func deprecatedLifetimes() []byte {
	lifetimes := make([]byte, 16) // preferred lifetime, valid lifetime, and two timestamps that the kernel sets
	binary.NativeEndian.PutUint32(lifetimes[4:], math.MaxUint32)
	return lifetimes
}

// broadcastAddr returns the broadcast address of an IPv4 subnet: its last address, as with "brd +" in ip(8). Subnets of
// one or two addresses have no broadcast address (RFC 3021).
func broadcastAddr(p netip.Prefix) (netip.Addr, bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}, false
	}
	return lastAddr(p), true
}

// Check returns an error if the link lacks the address, or if another host has it (duplicate address detection).
func (a Addr) Check(n *NS) error {
	index, err := n.linkIndex(a.Dev)
	if err != nil {
		return err
	}
	found, err := n.kernelAddrs(n.sendRequest, FamilyOf(a.Prefix.Addr()), index)
	if err != nil {
		return err
	}
	for _, f := range found {
		switch {
		case f.Prefix != a.Prefix:
		case f.Duplicate:
			return fmt.Errorf("another host uses the address %s", a.Prefix)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s has no address %s: %w", a.Dev, a.Prefix, fs.ErrNotExist)
}

// Addrs lists the addresses of a link, or of all links if dev is "". IPv4 addresses of a link are sorted from the
// oldest to the newest, but all secondary addresses come last. IPv6 addresses are sorted from the newest to the oldest
// (ipv6_link_dev_addr).
func (n *NS) Addrs(dev string) ([]Addr, error) {
	index, names, err := n.indexOrNames(dev)
	if err != nil {
		return nil, fmt.Errorf("%s: list addresses: %w", n.Name, err)
	}
	found, err := n.kernelAddrs(n.sendRequest, bothFamilies, index)
	if err != nil {
		return nil, fmt.Errorf("%s: list addresses: %w", n.Name, err)
	}
	var all []Addr
	for _, f := range found {
		f.Dev = names[f.index]
		all = append(all, f.Addr)
	}
	return all, nil
}

// AllAddrs lists the addresses of all links. If addresses change while the kernel lists them, AllAddrs tries again, and
// fails after ten tries.
func (n *NS) AllAddrs() (addrs []netip.Addr, err error) {
	found, err := n.kernelAddrs(n.sendExact, bothFamilies, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: list addresses: %w", n.Name, err)
	}
	for _, f := range found {
		addrs = append(addrs, f.Prefix.Addr())
	}
	return addrs, nil
}

// indexOrNames returns the index of the link dev, or 0 for all links if dev is "". The map has the names of these links
// by index.
func (n *NS) indexOrNames(dev string) (int, map[int]string, error) {
	if dev != "" {
		index, err := n.linkIndex(dev)
		return index, map[int]string{index: dev}, err
	}
	links, err := n.Links()
	names := make(map[int]string, len(links))
	for _, l := range links {
		names[l.Index] = l.Name
	}
	return 0, names, err
}

type kernelAddr struct {
	Addr  // without Dev
	index int
}

// bothFamilies is the family in a request for IPv4 and IPv6 addresses. The kernel lists the IPv4 addresses first, and
// then the IPv6 addresses (rtnl_dump_all).
const bothFamilies = Family(unix.AF_UNSPEC)

// kernelAddrs lists the addresses of the link with the given index, or of all links if index is 0.
func (n *NS) kernelAddrs(send sender, family Family, index int) ([]kernelAddr, error) {
	msg := nl.NewIfAddrmsg(int(family))
	msg.Index = uint32(index)
	msgs, err := send(unix.NETLINK_ROUTE, unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, msg)
	if isNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []kernelAddr
	for _, m := range msgs {
		// Skip families for which the request did not ask. If IPv6 is disabled (ipv6.disable=1), the kernel answers a
		// request for IPv6 with all families (rtnl_dump_all). Some kernels have more families than IPv4 and IPv6.
		if f := Family(m[0]); f != family && (family != bothFamilies || !slices.Contains(Families, f)) {
			continue
		}
		a := parseAddr(m)
		if index == 0 || a.index == index {
			found = append(found, a)
		}
	}
	return found, nil
}

func parseAddr(m []byte) kernelAddr {
	msg := nl.DeserializeIfAddrmsg(m)
	var local netip.Addr
	flags := uint32(msg.Flags)
	for typ, value := range attrsOf(m[msg.Len():]) {
		switch typ {
		case unix.IFA_LOCAL: // the address of the link itself; IFA_ADDRESS is the peer's address if there is a peer
			local = addrFrom(value)
		case unix.IFA_ADDRESS:
			if !local.IsValid() {
				local = addrFrom(value)
			}
		case unix.IFA_FLAGS:
			flags = nativeUint(value)
		}
	}
	is := func(flag uint32) bool { return flags&flag != 0 }
	a := Addr{Prefix: netip.PrefixFrom(local, int(msg.Prefixlen)), NoDAD: is(unix.IFA_F_NODAD),
		Secondary: is(unix.IFA_F_SECONDARY), Dynamic: !is(unix.IFA_F_PERMANENT), Deprecated: is(unix.IFA_F_DEPRECATED),
		Tentative: is(unix.IFA_F_TENTATIVE), Duplicate: is(unix.IFA_F_DADFAILED)}
	a.Apart = is(unix.IFA_F_NOPREFIXROUTE) && (a.Deprecated || msg.Scope == unix.RT_SCOPE_LINK && local.Is4())
	return kernelAddr{a, int(msg.Index)}
}
