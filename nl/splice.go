// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A Splice connects two links of a namespace by a program at the ingress of each. Packets that a Splice sends from one
// link to the other bypass the namespace's forwarding and netfilter.
//
// A packet that arrives by Veth for the address MAC leaves by ENI, by the routes of the namespace. The program changes
// a source port of TCP or UDP that is at least [SpliceOwn] and below [SpliceFirst]. The n-th port from SpliceOwn on
// becomes the n-th port from SpliceFirst on. A packet may arrive by ENI for a port from SpliceFirst on. If no socket of
// the namespace awaits this packet, the program changes the port back. The packet then goes to the other end of Veth,
// and arrives there as if Veth had sent it. All other packets take their usual way.
//
// The namespace must not use the ports from SpliceFirst on for its own connections. Programs in the namespace may still
// listen on these ports. A socket awaits a packet in these cases:
//
//   - The packet belongs to a TCP connection of the namespace, or begins one.
//   - A UDP socket is connected to the packet's source.
//   - Any other socket has the port, unless the packet answers a packet that the Splice has sent by ENI.
//
// A TCP connection of the namespace may have no socket, because a rule translates its port. The programs recognise such
// a connection in two cases: the connection begins from outside, or the connection is answered and has not begun by
// Veth. After a program has recognised a connection, the packets of the connection count as awaited. The programs
// remember these few connections, and connections that begin by Veth, as long as there is room. An ICMP error is
// awaited if the answer to the packet inside the error is awaited. Fragments of a packet go where the first fragment
// goes.
type Splice struct {
	ENI, Veth string
	MAC       string
	Mark      uint32
	Pod       uint16
}

// Each port from SpliceFirst to the highest port stands for a port from SpliceOwn to SpliceFirst - 1. The two ports
// differ in one bit.
const (
	SpliceOwn   = bpf.Own
	SpliceFirst = bpf.First
)

func (s Splice) String() string {
	onward := fmt.Sprintf("%s classid :%x direct-action # what is to %s: sport + %d, bpf_redirect_neigh %s",
		filter{}.command(s.Veth), s.Pod, s.MAC, bpf.Bit, s.ENI)
	if s.Mark != 0 {
		onward += fmt.Sprintf("; else: mark | %#x", s.Mark)
	}
	return onward + "\n\t" +
		fmt.Sprintf("%s classid :%x direct-action # dport >= %d that no socket awaits: dport - %d, "+
			"bpf_redirect_peer %s",
			filter{}.command(s.ENI), s.Pod, SpliceFirst, bpf.Bit, s.Veth)
}

// Supported fails if this kernel refuses the programs. The error is ErrNoBPF.
func (s Splice) Supported() error {
	link := filter{index: 1}
	return s.load(link, link, false, func(onward, unawaited int) error { return nil })
}

// load loads the programs of two filters, or opens the shared programs, and calls use with their file descriptors.
func (s Splice) load(atVeth, atENI filter, share bool, use func(onward, unawaited int) error) error {
	l := newLoader(share)
	defer l.close()
	first, err := l.program(atVeth.name, func(m bpf.Maps) []byte { return s.onward(m, atENI.index) })
	if err != nil {
		return err
	}
	defer unix.Close(first)
	second, err := l.program(atENI.name, func(m bpf.Maps) []byte { return bpf.Unawaited(m, atVeth.index) })
	if err != nil {
		return err
	}
	defer unix.Close(second)
	return use(first, second)
}

// onward returns the code of the program for the veth.
func (s Splice) onward(m bpf.Maps, eni int) []byte {
	hw, _ := net.ParseMAC(s.MAC)
	return bpf.Onward(hw, s.Mark, m, eni)
}

// filters returns the two filters with the names of their programs.
func (s Splice) filters(n *NS) (atVeth, atENI filter, err error) {
	atVeth.class, atENI.class = s.Pod, s.Pod
	atENI.index, err = n.index(s.ENI)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.index, err = n.index(s.Veth)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.name = fingerprint("onward " + s.MAC + decimal(s.Mark) + " " + decimal(atENI.index))
	atENI.name = fingerprint("unawaited " + decimal(atVeth.index))
	return atVeth, atENI, nil
}

// Add adds both programs, or replaces programs that differ. The error is ErrNoBPF if the kernel cannot run the
// programs.
func (s Splice) Add(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	if eachFilter(n, []filter{atVeth, atENI}, filter.same) == nil {
		return errSame
	}
	// The links of nearly all pods have the same indices, and so the same programs. Programs
	// for other indices are not pinned.
	share := usual(atENI.index) && usual(atVeth.index)
	return s.load(atVeth, atENI, share, func(onward, unawaited int) error {
		if err := atVeth.add(n, onward); err != nil {
			return err
		}
		err := atENI.add(n, unawaited)
		if err != nil {
			_ = atVeth.del(n)
		}
		return err
	})
}

// usual reports whether many pods have a link of this index: the index of one of a namespace's first links, or of an
// [IPVlan].
func usual(index int) bool {
	const few = 8
	return index < few || index >= slaveIndex && index < slaveIndex+few
}

// Del deletes both filters. The qdiscs to which Add has attached them stay on the links, because other filters may use
// the qdiscs.
func (s Splice) Del(n *NS) error { return delFilters(n, []string{s.ENI, s.Veth}, filter{}) }

// Check returns an error if a filter is missing, or if its program has another effect.
func (s Splice) Check(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	return eachFilter(n, []filter{atVeth, atENI}, filter.check)
}
