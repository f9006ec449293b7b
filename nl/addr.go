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

// An Addr is an address of a link, with the prefix of its subnet.
type Addr struct {
	Prefix netip.Prefix
	Dev    string
	// NoDAD makes an IPv6 address usable at once, without duplicate address detection. The detection is not necessary,
	// because EC2 gives an address to one ENI only. Between slaves of one link, the detection would fail: a slave would
	// take the probe of another slave for its own.
	NoDAD bool
	// Apart makes the kernel use the address only for programs that ask for it. The kernel adds no route to the
	// address's subnet (IFA_F_NOPREFIXROUTE). If a program has chosen no source for a packet, the kernel does not
	// choose this address. The reason is that an IPv4 address gets the scope link, and an IPv6 address is deprecated
	// (inet_select_addr; RFC 6724, section 5, rule 3).
	Apart bool

	// Addrs sets the following fields. Add ignores them.
	Secondary  bool // IPv4: the link already had an address of the same subnet; IPv6: a temporary address, for privacy
	Dynamic    bool // the address has a lifetime, like an address from DHCP
	Deprecated bool // not for new connections: preferred_lft is over
	Tentative  bool // IPv6: duplicate address detection has not ended
	Duplicate  bool // IPv6: another host has the address
}

func (a Addr) String() string {
	c := command("ip addr add").word(a.Prefix.String()).option("dev", a.Dev).flag("nodad", a.NoDAD)
	c.flag("scope link", a.Apart && a.Prefix.Addr().Is4()).flag("preferred_lft 0", a.Apart && a.Prefix.Addr().Is6())
	return c.flag("noprefixroute", a.Apart).String()
}

// Add adds the address. If Apart is not set, the kernel also adds the route to the address's subnet.
func (a Addr) Add(n *NS) error { return a.change(n, unix.RTM_NEWADDR, addNew) }

// Del removes the address.
func (a Addr) Del(n *NS) error { return a.change(n, unix.RTM_DELADDR, 0) }

func (a Addr) change(n *NS, typ, flags int) error {
	index, err := n.index(a.Dev)
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
			attrs = append(attrs, attr(unix.IFA_CACHEINFO, deprecated()))
		}
	}
	if b, ok := broadcast(a.Prefix); ok {
		attrs = append(attrs, attrAddr(unix.IFA_BROADCAST, b))
	}
	return n.change(typ, flags, msg, attrs...)
}

// deprecated returns a struct ifa_cacheinfo of linux/if_addr.h. It has the lifetimes of an address that stays for ever,
// but that new connections do not use.
func deprecated() []byte {
	lifetimes := make([]byte, 16) // preferred, valid, and two times that the kernel sets
	binary.NativeEndian.PutUint32(lifetimes[4:], math.MaxUint32)
	return lifetimes
}

// broadcast returns the last address of an IPv4 subnet, as "brd +" of ip(8) adds it. Subnets of one or two addresses
// have no broadcast address (RFC 3021).
func broadcast(p netip.Prefix) (netip.Addr, bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}, false
	}
	return last(p), true
}

// Check returns an error if the address is missing, or if IPv6 has found the address at another host.
func (a Addr) Check(n *NS) error {
	index, err := n.index(a.Dev)
	if err != nil {
		return err
	}
	found, err := n.addrs(n.request, FamilyOf(a.Prefix.Addr()), index)
	if err != nil {
		return err
	}
	for _, f := range found {
		switch {
		case f.Prefix != a.Prefix:
		case f.Duplicate:
			return fmt.Errorf("%s is a duplicate", a.Prefix)
		default:
			return nil
		}
	}
	return fmt.Errorf("%s has no address %s: %w", a.Dev, a.Prefix, fs.ErrNotExist)
}

// Addrs lists the addresses of a link, or of all links if dev is "". In IPv4, Secondary addresses come last, and older
// addresses come before newer addresses. In IPv6, newer addresses come first (ipv6_link_dev_addr).
func (n *NS) Addrs(dev string) ([]Addr, error) {
	index, names, err := n.indexOrNames(dev)
	if err != nil {
		return nil, fmt.Errorf("%s: list addresses: %w", n.Name, err)
	}
	found, err := n.addrs(n.request, bothFamilies, index)
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

// AllAddrs lists the addresses of all links, for callers who must know that no address is missing.
func (n *NS) AllAddrs() (addrs []netip.Addr, err error) {
	found, err := n.addrs(n.exact, bothFamilies, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: list addresses: %w", n.Name, err)
	}
	for _, f := range found {
		addrs = append(addrs, f.Prefix.Addr())
	}
	return addrs, nil
}

// indexOrNames returns the index of the link dev, and a map from that index to dev. If dev is "", indexOrNames returns
// 0, and a map from the indices of all links to their names.
func (n *NS) indexOrNames(dev string) (int, map[int]string, error) {
	if dev != "" {
		index, err := n.index(dev)
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

// bothFamilies asks for IPv4 and IPv6, in this order (rtnl_dump_all).
const bothFamilies = Family(unix.AF_UNSPEC)

// addrs reads the addresses of one link, or of all links if index is 0. request is the method that asks the kernel.
func (n *NS) addrs(request requester, family Family, index int) ([]kernelAddr, error) {
	msg := nl.NewIfAddrmsg(int(family))
	msg.Index = uint32(index)
	msgs, err := request(unix.NETLINK_ROUTE, unix.RTM_GETADDR, unix.NLM_F_DUMP, unix.RTM_NEWADDR, msg)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []kernelAddr
	for _, m := range msgs {
		// If IPv6 is disabled (ipv6.disable=1), the kernel answers a request for IPv6 with all families
		// (rtnl_dump_all). Some kernels have more than two families.
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
		case unix.IFA_LOCAL: // the address; IFA_ADDRESS is then the peer's address, if there is a peer
			local = addrFrom(value)
		case unix.IFA_ADDRESS:
			if !local.IsValid() {
				local = addrFrom(value)
			}
		case unix.IFA_FLAGS:
			flags = number(value)
		}
	}
	is := func(flag uint32) bool { return flags&flag != 0 }
	a := Addr{Prefix: netip.PrefixFrom(local, int(msg.Prefixlen)), NoDAD: is(unix.IFA_F_NODAD),
		Secondary: is(unix.IFA_F_SECONDARY), Dynamic: !is(unix.IFA_F_PERMANENT), Deprecated: is(unix.IFA_F_DEPRECATED),
		Tentative: is(unix.IFA_F_TENTATIVE), Duplicate: is(unix.IFA_F_DADFAILED)}
	a.Apart = is(unix.IFA_F_NOPREFIXROUTE) && (a.Deprecated || msg.Scope == unix.RT_SCOPE_LINK && local.Is4())
	return kernelAddr{a, int(msg.Index)}
}
