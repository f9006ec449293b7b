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

// A Forbid drops all packets to the addresses Addrs when the packets leave through one of the links Devs. It does not
// matter which program sends the packets.
//
// An unreachable or blackhole route would not stop a socket that is bound to a link. If the lookup of a route fails for
// such a socket, IPv4 assumes that the destination is on the socket's link (ip_route_output_key_hash_rcu, "Apparently,
// routing tables are wrong"). So a Forbid is a BPF program at the egress of each link. This program sees even packets
// from packet sockets.
//
// Addrs can have at most one address of each family: see [bpf.Refuse].
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
		lines = append(lines, fmt.Sprintf("%s direct-action # drop packets to %s", filter{hook: tcEgress}.command(dev),
			strings.Join(addrs, ", ")))
	}
	return strings.Join(lines, "\n\t")
}

// Supported returns [ErrNoBPF] if this kernel refuses the program.
func (f Forbid) Supported() error {
	program, err := loadBPF(bpf.Refuse(f.Addrs))
	if err != nil {
		return err
	}
	return unix.Close(program)
}

// filter returns a filter that has no link yet: onLinks sets the index of each link.
func (f Forbid) filter() filter {
	return filter{name: programName(fmt.Sprint("refuse ", f.Addrs)), hook: tcEgress}
}

// Add adds the filters, or replaces filters that differ. The error is [ErrNoBPF] if the kernel cannot run the program.
func (f Forbid) Add(n *NS) error { return addFilters(n, f.Devs, f.filter(), bpf.Refuse(f.Addrs)) }

// Del deletes the filters. The links keep the qdiscs (clsact) that Add has added.
func (f Forbid) Del(n *NS) error { return delFilters(n, f.Devs, filter{hook: tcEgress}) }

func (f Forbid) Check(n *NS) error { return checkFilters(n, f.Devs, f.filter()) }
