// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A Splice joins two links of a namespace, past its routing and its netfilter, by a
// program at either's ingress.
//
// What comes in by Veth and is addressed to MAC goes on by ENI, by the routes of the
// namespace. A source port of TCP or UDP from [SpliceOwn] on becomes the one that
// stands for it, from [SpliceFirst] on: the n-th for the n-th. What comes in by ENI
// for such a port, and which no socket of the namespace awaits, is changed back and
// goes to the other end of Veth, where it arrives as if sent by the veth. All else
// takes its usual way.
//
// The namespace must not take the ports from SpliceFirst on for connections of its
// own. That it serves on one is no harm: a packet is awaited if it belongs to a
// connection of TCP that there is, or begins one; if a socket of UDP is connected to
// where it comes from; or if any other socket has that port, unless a packet has gone
// on by ENI that this answers. One that begins without a socket, because something
// translates its port, is awaited from then on; so is one that is answered without a
// socket, and has not begun by Veth. The programs keep in mind those few, and what begins by
// Veth as long as there is room.
// An error of ICMP is awaited by whoever awaits answers to the packet that it is
// about, and fragments go where the first of them goes.
//
// What comes in by Veth and stays gets the bits of Mark, besides those that it has. By
// these the namespace knows what calls it by Veth.
type Splice struct {
	ENI, Veth string
	MAC       string
	Mark      uint32
}

// The ports from SpliceFirst to the last that there is stand for those from
// SpliceOwn up to SpliceFirst, from which they differ by one bit.
const (
	SpliceOwn   = bpf.Own
	SpliceFirst = bpf.First
)

func (s Splice) String() string {
	onward := fmt.Sprintf("%s direct-action # what is to %s: sport + %d, bpf_redirect_neigh %s",
		filter{}.command(s.Veth), s.MAC, bpf.Bit, s.ENI)
	if s.Mark != 0 {
		onward += fmt.Sprintf("; else: mark | %#x", s.Mark)
	}
	return onward + "\n\t" + fmt.Sprintf("%s direct-action # dport >= %d that no socket awaits: dport - %d, bpf_redirect_peer %s",
		filter{}.command(s.ENI), SpliceFirst, bpf.Bit, s.Veth)
}

// Supported says whether this kernel takes the programs. The error answers to ErrNoBPF.
func (s Splice) Supported() error {
	link := filter{index: 1}
	return s.load(link, link, false, func(onward, unawaited int) error { return nil })
}

// load loads the programs of two filters, or gets those that are shared, and calls use
// with their files.
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

// onward is the program for the veth.
func (s Splice) onward(m bpf.Maps, eni int) []byte {
	hw, _ := net.ParseMAC(s.MAC)
	return bpf.Onward(hw, s.Mark, m, eni)
}

// filters are the two filters, with the programs' names.
func (s Splice) filters(n *NS) (atVeth, atENI filter, err error) {
	atENI.index, err = n.index(s.ENI)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.index, err = n.index(s.Veth)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.name = fingerprint(fmt.Sprint("onward ", s.MAC, s.Mark, atENI.index), s.onward(bpf.Maps{}, atENI.index))
	atENI.name = fingerprint(fmt.Sprint("unawaited ", atVeth.index), bpf.Unawaited(bpf.Maps{}, atVeth.index))
	return atVeth, atENI, nil
}

// Add adds both programs, or replaces those that differ. The error answers to
// ErrNoBPF if the kernel cannot run them.
func (s Splice) Add(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	if eachFilter(n, []filter{atVeth, atENI}, filter.same) == nil {
		return errSame
	}
	// The links of nearly all pods have the same indices, and so the same programs.
	// Others are not kept for ever.
	share := usual(atENI.index) && usual(atVeth.index) && canPin()
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

// usual tells whether many pods have a link of this index: one of their first, or an IPVlan.
func usual(index int) bool {
	const few = 8
	return index < few || index >= slaveIndex && index < slaveIndex+slaves
}

// Del deletes both programs. The hooks stay with the links: others may use them.
func (s Splice) Del(n *NS) error { return delFilters(n, []string{s.ENI, s.Veth}, filter{}) }

// Check compares both programs with those that there are.
func (s Splice) Check(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	return eachFilter(n, []filter{atVeth, atENI}, filter.check)
}
