// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestCrowd fills the maps of the splice with connections of one pod. Another pod shares these maps, and must lose none
// of its entries.
func TestCrowd(t *testing.T) {
	mountPins(t)
	host, _ := nltest.NS(t, "host")
	quiet, crowded := newTapped(t, host, 1), newTapped(t, host, 2)
	const server, own, answer = 50000, 40000, 40000 + nl.SpliceFirst - nl.SpliceOwn
	quiet.wants("a connection begins that the pod translates", no, 443, server, syn)
	quiet.loop(own, 443)
	first, later := ip4(0, 0x2000, udp(nl.SpliceFirst)), ip4(0, 0x0010, udp(nl.SpliceFirst))
	if how := quiet.how(first); how != changed {
		t.Errorf("the first piece of a packet comes to the node %s", how)
	}
	crowded.wants("another of the other pod", no, 443, server+1, syn)
	crowded.fill(20000, func() { crowded.wants("one that is in use", no, 443, server+1, ack) })
	quiet.wants("it goes on", no, 443, server, ack)
	quiet.wants("an answer to what the pod has begun", changed, 443, answer, syn|ack)
	quiet.wants("that goes on", changed, 443, answer, ack)
	if how := quiet.how(later); how != as {
		t.Errorf("a later piece comes to the node %s", how)
	}
}

// These texts say how a packet reaches the node.
const no, as, changed = "not at all", "as it is", "with its own port"

// These are flags of TCP.
const syn, ack = 0x02, 0x10

// mountPins mounts the BPF file system, through which pods share maps and programs.
func mountPins(t *testing.T) {
	t.Helper()
	nltest.Need(t, "root")
	const dir = "/sys/fs/bpf"
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// A tapped is a pod to which the test sends frames, and from which it reads frames, through the pod's two links.
type tapped struct{ wire }

// newTapped adds the programs without a pod's number, as an earlier release did. Then it adds them with the number.
func newTapped(t *testing.T, host *nl.NS, number uint16) *tapped {
	t.Helper()
	pod, _ := nltest.NS(t, fmt.Sprint("pod", number))
	eni, veth := fmt.Sprint("eni", number), fmt.Sprint("veth", number)
	w := nl.Wiring{
		{host, nl.Veth{Name: eni, Peer: "eth0", PeerNS: pod}}, {host, nl.Veth{Name: veth, Peer: "eth1", PeerNS: pod}},
		{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"}},
	}
	numbered := nl.Wiring{{pod, nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48", Pod: number}}}
	if err := errors.Join(w.Add(), numbered.Check(), numbered.Add(), numbered.Check()); err != nil {
		t.Fatal(err)
	}
	return &tapped{wire{t: t, in: raw(t, host, eni), out: raw(t, host, veth)}}
}

// connecting returns a TCP frame from one port to another.
func connecting(from, to uint16, flags byte) []byte {
	s := tcp(to)
	binary.BigEndian.PutUint16(s.bytes, from)
	s.bytes[13] = flags
	return ip4(0, 0, s)
}

// wants sends a packet through the ENI, and checks how this packet reaches the node.
func (p *tapped) wants(what, want string, from, to uint16, flags byte) {
	p.t.Helper()
	if got := p.how(connecting(from, to, flags)); got != want {
		p.t.Errorf("%s: it comes to the node %s, want %s", what, got, want)
	}
}

// loop begins a connection from the pod to a Service whose backend is the pod. The node sends the packet back through
// the veth.
func (p *tapped) loop(from, to uint16) {
	b := connecting(from, to, syn)
	copy(b, []byte{0x02, 0, 0, 0, 0, 0x48})
	copy(b[26:], []byte{10, 0, 1, 50, 10, 0, 2, 20})
	p.send(p.out, b)
}

// fill sends packets of many established connections: some from outside, others from the pod to itself through the
// loop. After every 500 connections, it calls the function between.
func (p *tapped) fill(connections int, between func()) {
	for i := range connections {
		from, to := uint16(1024+i%0x4000), uint16(nl.SpliceFirst+i/0x4000)
		p.send(p.in, connecting(from, to, syn))
		p.send(p.in, connecting(from, to, ack))
		p.loop(uint16(nl.SpliceOwn+i%0x4000), uint16(1024+i/0x4000))
		if i%500 == 0 {
			between()
		}
	}
}

func (p *tapped) send(fd int, frame []byte) {
	if _, err := unix.Write(fd, frame); err != nil {
		p.t.Fatal(err)
	}
}
