// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A Splice connects two links of a pod (ENI and Veth) by a BPF program at the ingress of each link. The programs send
// some packets directly from one link to the other, past the forwarding and netfilter of the pod's namespace.
//
// The first program handles packets that arrive through Veth for the MAC address MAC. It sends them out through ENI, to
// the next hop in the namespace's routes. If a TCP or UDP source port is at least [SpliceOwn] and below [SpliceFirst],
// the first program adds SpliceFirst - SpliceOwn to the port. The second program handles packets that arrive through
// ENI for a port of at least SpliceFirst. If no socket of the namespace awaits such a packet, the second program
// changes the port back, and gives the packet to the other end of Veth. All other packets take their usual way.
//
// For the namespace's own connections, the kernel must choose only ports below SpliceFirst (see [LocalPorts]). But a
// process in the namespace may choose SpliceFirst or a higher port, to listen on it. A socket awaits a packet in these
// cases:
//
//   - The packet belongs to a TCP connection of the namespace, or begins one.
//   - A UDP socket is connected to the packet's source.
//   - Any other socket has the packet's destination port, and the packet is no answer to a packet that the Splice has
//     sent through ENI.
//
// A NAT rule may give the namespace's TCP connection a port that no socket has. If the programs recognise this
// connection, they treat its packets as awaited. The programs recognise a connection from outside by the first packet,
// and a connection to outside by the first answer. But an answer may also belong to a connection whose first packet
// came through Veth. So the programs remember each connection through Veth, and do not treat its answers as awaited.
// The programs remember all these connections as long as the maps have room. An ICMP error is treated like an answer to
// the packet that the error contains. All fragments of a packet go where its first fragment goes.
type Splice struct {
	ENI, Veth string
	MAC       string
	Mark      uint32
	Pod       uint16
}

// A Splice translates ports of at least SpliceOwn and below SpliceFirst to ports of at least SpliceFirst, and back.
const (
	SpliceOwn   = bpf.OwnPort
	SpliceFirst = bpf.FirstPort
)

func (s Splice) String() string {
	onward := fmt.Sprintf("%s classid :%x direct-action # packets to %s: sport + %d, bpf_redirect_neigh %s",
		filter{}.command(s.Veth), s.Pod, s.MAC, bpf.PortBit, s.ENI)
	if s.Mark != 0 {
		onward += fmt.Sprintf("; other packets: mark | %#x", s.Mark)
	}
	return onward + "\n\t" +
		fmt.Sprintf("%s classid :%x direct-action # packets to ports >= %d that no socket awaits: dport - %d, "+
			"bpf_redirect_peer %s",
			filter{}.command(s.ENI), s.Pod, SpliceFirst, bpf.PortBit, s.Veth)
}

// Supported returns [ErrNoBPF] if this kernel refuses the programs.
func (s Splice) Supported() error {
	link := filter{index: 1}
	return s.load(link, link, false, func(onward, unawaited int) error { return nil })
}

// load loads the programs of both filters, or opens them if share is true and they are pinned. It then calls attach
// with their file descriptors.
func (s Splice) load(atVeth, atENI filter, share bool, attach func(onward, unawaited int) error) error {
	l := newLoader(share)
	defer l.close()
	first, err := l.loadProgram(atVeth.name, func(m bpf.Maps) []byte { return s.onwardCode(m, atENI.index) })
	if err != nil {
		return err
	}
	defer unix.Close(first)
	second, err := l.loadProgram(atENI.name, func(m bpf.Maps) []byte { return bpf.Unawaited(m, atVeth.index) })
	if err != nil {
		return err
	}
	defer unix.Close(second)
	return attach(first, second)
}

func (s Splice) onwardCode(m bpf.Maps, eni int) []byte {
	hw, _ := net.ParseMAC(s.MAC)
	return bpf.Onward(hw, s.Mark, m, eni)
}

func (s Splice) filters(n *NS) (atVeth, atENI filter, err error) {
	atVeth.class, atENI.class = s.Pod, s.Pod
	atENI.index, err = n.linkIndex(s.ENI)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.index, err = n.linkIndex(s.Veth)
	if err != nil {
		return atVeth, atENI, err
	}
	atVeth.name = programName("onward " + s.MAC + decimal(s.Mark) + " " + decimal(atENI.index))
	atENI.name = programName("unawaited " + decimal(atVeth.index))
	return atVeth, atENI, nil
}

// Add adds both filters, or replaces filters that differ. The error is [ErrNoBPF] if the kernel cannot run the
// programs.
func (s Splice) Add(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	if eachFilter(n, []filter{atVeth, atENI}, filter.checkSame) == nil {
		return errSame
	}
	// In nearly all pods, the links have the same indices, so the pods share the programs. Programs for other indices
	// are not pinned.
	share := isUsualIndex(atENI.index) && isUsualIndex(atVeth.index)
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

// isUsualIndex reports whether many pods have a link with this index. The usual indices are those of a namespace's
// first links, and of the first slaves (see [IPVlan]).
func isUsualIndex(index int) bool {
	const few = 8
	return index < few || index >= firstSlaveIndex && index < firstSlaveIndex+few
}

// Del deletes both filters. The links keep the qdiscs, because other filters may use them.
func (s Splice) Del(n *NS) error { return delFilters(n, []string{s.ENI, s.Veth}, filter{}) }

// Check returns an error if a filter is missing, or has a program with another effect.
func (s Splice) Check(n *NS) error {
	atVeth, atENI, err := s.filters(n)
	if err != nil {
		return err
	}
	return eachFilter(n, []filter{atVeth, atENI}, filter.check)
}
