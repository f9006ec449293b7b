// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
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
	program, err := loadBPF(bpf.Refuse(f.Addrs))
	if err != nil {
		return err
	}
	return unix.Close(program)
}

// filter is the one at each of the links.
func (f Forbid) filter() filter {
	return filter{name: fingerprint(fmt.Sprint("refuse ", f.Addrs), bpf.Refuse(f.Addrs)), hook: tcEgress}
}

// Add adds the filters, or replaces those that differ. The error answers to ErrNoBPF
// if the kernel cannot run them.
func (f Forbid) Add(n *NS) error { return addFilters(n, f.Devs, f.filter(), bpf.Refuse(f.Addrs)) }

// Del deletes the filters. The hooks stay with the links.
func (f Forbid) Del(n *NS) error { return delFilters(n, f.Devs, filter{hook: tcEgress}) }

// Check compares the filters with those that there are.
func (f Forbid) Check(n *NS) error { return checkFilters(n, f.Devs, f.filter()) }
