// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// A Forbid drops what leaves by links for some addresses, whoever sends it.
//
// A route that refuses a destination does not do so for a socket that is bound to a
// link: when IPv4 finds no way for it, it takes the destination to be on that link
// (ip_route_output_key_hash_rcu, "Apparently, routing tables are wrong"). A program
// at a link's egress sees all that leaves, packet sockets included.
type Forbid struct {
	Devs  []string
	Addrs []netip.Addr
}

func (f Forbid) String() string {
	var addrs []string
	for _, a := range f.Addrs {
		addrs = append(addrs, a.String())
	}
	var lines []string
	for _, dev := range f.Devs {
		lines = append(lines, fmt.Sprintf("%s direct-action # drop what is to %s", filter{hook: tcEgress}.command(dev), strings.Join(addrs, ", ")))
	}
	return strings.Join(lines, "\n\t")
}

// Supported says whether this kernel takes the program. The error answers to ErrNoBPF.
func (f Forbid) Supported() error {
	program, err := loadBPF(refusal(f.Addrs))
	if err != nil {
		return err
	}
	return unix.Close(program)
}

// filter is the one at each of the links.
func (f Forbid) filter() filter {
	return filter{name: fingerprint(fmt.Sprint("refuse ", f.Addrs), refusal(f.Addrs)), hook: tcEgress}
}

// Add adds the filters, or replaces those that differ. The error answers to ErrNoBPF
// if the kernel cannot run them.
func (f Forbid) Add(n *NS) error { return addFilters(n, f.Devs, f.filter(), refusal(f.Addrs)) }

// Del deletes the filters. The hooks stay with the links.
func (f Forbid) Del(n *NS) error { return delFilters(n, f.Devs, filter{hook: tcEgress}) }

// Check compares the filters with those that there are.
func (f Forbid) Check(n *NS) error { return checkFilters(n, f.Devs, f.filter()) }

// refusal is the program of a Forbid.
func refusal(addrs []netip.Addr) []byte {
	const ip4Dst, ip6Dst = ip4Addrs + 4, ip6Addrs + 16
	a := newAsm()
	begin(a)
	a.load(size2, r0, r2, ethType)
	a.when(r0, equals, bytes2(unix.ETH_P_IPV6), "ip6")
	a.when(r0, unequal, bytes2(unix.ETH_P_IP), "pass")
	refuse(a, addrs, false, ip4Dst)
	a.jump("pass")
	a.label("ip6")
	within(a, r2, ethLen+ip6Len)
	refuse(a, addrs, true, ip6Dst)
	a.jump("pass")
	short(a)
	a.label("pass")
	a.leave(next)
	a.label("drop")
	a.leave(shot)
	return a.assemble()
}

// refuse drops what is to one of the addresses of a family, which are at an offset.
func refuse(a *asm, addrs []netip.Addr, v6 bool, off int16) {
	for i, addr := range addrs {
		if addr.Is6() != v6 {
			continue
		}
		other := fmt.Sprint("not ", i)
		for j, b := 0, addr.AsSlice(); j < len(b); j += 2 {
			a.load(size2, r0, r2, off+int16(j))
			a.when(r0, unequal, bytes2(binary.BigEndian.Uint16(b[j:])), other)
		}
		a.jump("drop")
		a.label(other)
	}
}
