// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
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
// translates its port, is awaited from then on. The programs keep in mind those few.
// An error of ICMP is awaited by whoever awaits answers to the packet that it is
// about, and fragments go where the first of them goes.
type Splice struct {
	ENI, Veth string
	MAC       string
}

// The ports from SpliceFirst to the last that there is stand for those from
// SpliceOwn up to SpliceFirst, from which they differ by one bit.
const (
	SpliceOwn   = 0x8000
	SpliceFirst = SpliceOwn | spliceBit
	spliceBit   = 0x4000
)

func (s Splice) String() string {
	const filter = "tc qdisc add dev %s clsact; tc filter add dev %[1]s ingress pref %[2]d handle 1 bpf direct-action"
	return fmt.Sprintf(filter+" # what is to %[3]s: sport + %[5]d, bpf_redirect_neigh %[4]s\n\t", s.Veth, filterPref, s.MAC, s.ENI, spliceBit) +
		fmt.Sprintf(filter+" # dport >= %[3]d that no socket awaits: dport - %[5]d, bpf_redirect_peer %[4]s", s.ENI, filterPref, SpliceFirst, s.Veth, spliceBit)
}

// Supported says whether this kernel takes the programs. The error answers to ErrNoBPF.
func (s Splice) Supported() error {
	return s.load(1, 1, false, func(onward, unawaited int) error { return nil })
}

// load loads the programs for links with these indices, or gets those that are
// shared, and calls use with their files.
func (s Splice) load(eni, veth int, share bool, use func(onward, unawaited int) error) error {
	keep := func(_ string, open func() (int, error)) (int, error) { return open() }
	entries := uint32(1024) // of a tenth of a kB
	if share {
		keep, entries = pinned, 16384 // for all pods of the node
	}
	memory, err := keep(fingerprint([]byte("memory")), func() (int, error) { return createMap(keySize, entries) })
	if err != nil {
		return err
	}
	defer unix.Close(memory)
	first, err := keep(fingerprint(onward(0, s.MAC, eni)), func() (int, error) { return loadBPF(onward(memory, s.MAC, eni)) })
	if err != nil {
		return err
	}
	defer unix.Close(first)
	second, err := keep(fingerprint(unawaited(0, veth)), func() (int, error) { return loadBPF(unawaited(memory, veth)) })
	if err != nil {
		return err
	}
	defer unix.Close(second)
	return use(first, second)
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
	atVeth.name = fingerprint(onward(0, s.MAC, atENI.index))
	atENI.name = fingerprint(unawaited(0, atVeth.index))
	return atVeth, atENI, nil
}

// Add adds both programs, or replaces those that differ. The error answers to
// ErrNoBPF if the kernel cannot run them.
func (s Splice) Add(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	if errors.Join(atVeth.check(n), atENI.check(n)) == nil {
		return errSame
	}
	// The links of nearly all pods have the same indices, and so the same programs.
	// Others are not kept for ever.
	share := usual(atENI.index) && usual(atVeth.index) && canPin()
	return s.load(atENI.index, atVeth.index, share, func(onward, unawaited int) error {
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
	return checkFilters(n, []filter{atVeth, atENI})
}
