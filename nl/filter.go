// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/bpf"
)

// A filter is a BPF program at a link, tc-bpf(8). A filter at the ingress sees each packet before everything except a
// capture. A filter at the egress sees each packet after everything except a queue.
//
// Since Linux 6.6 a link can run programs without tc ("bpftool net": tcx). A program without tc costs a packet less
// than half of the 200 instructions of tc itself. But to attach one, and to delete the link, the kernel waits for a
// grace period of RCU, some 10 ms (tcx_entry_sync in include/net/tcx.h). No process can change a link or a route
// meanwhile. A pod's ADD would take several times as long, and the ADDs of a burst would wait for each other.
type filter struct {
	index  int       // of the link
	name   string    // of the program: its fingerprint
	class  uint16    // of the pod, for the program: see Splice
	older  bool      // it has the handle that earlier releases used for outgoing packets
	hook   uint32    // tcEgress, or 0 for arriving packets
	pref   uint32    // its priority among the filters of the hook, lowest first; 0 is filterPref
	police attribute // the action on what the program matches; without it the program itself decides
}

// The parents of linux/pkt_sched.h: the hooks, arriving packets, and outgoing packets.
const (
	tcHooks   = 0xfffffff1
	tcHandle  = 0xffff0000
	tcIngress = 0xfffffff2
	tcEgress  = 0xfffffff3
)

// filterPref is the priority among the filters of a link, lowest first. A pod's links have few filters, and our filter
// passes all other packets to the next filter.
const filterPref = 72

// add adds the filter with the program of a file, or replaces its program.
func (f filter) add(n *NS, program int) error {
	err := f.hooks(n)
	if err == nil {
		_, err = f.request(n, unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK, 0, f.options(program))
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // no such hook or filter is known
		return fmt.Errorf("%w: %w", ErrNoBPF, err)
	}
	return err
}

func (f filter) options(program int) attribute {
	options := []attribute{attr32(nl.TCA_BPF_FD, uint32(program)), attrString(nl.TCA_BPF_NAME, f.name)}
	if f.police != nil {
		return nest(nl.TCA_OPTIONS, append(options, f.police)...)
	}
	if f.class != 0 {
		options = append(options, attr32(nl.TCA_BPF_CLASSID, uint32(f.class)))
	}
	return nest(nl.TCA_OPTIONS, append(options, attr32(nl.TCA_BPF_FLAGS, nl.TCA_BPF_FLAG_ACT_DIRECT))...)
}

// qdisc is the kind of qdisc that has the hook. While any link of the machine has a clsact, the kernel looks for a
// clsact of the link for each packet that leaves. This search takes up to half of a percent of the cost of a packet
// between two pods. So only a link with a filter for outgoing packets gets a clsact, and that filter must be added
// first.
func (f filter) qdisc() string {
	if f.hook == tcEgress {
		return "clsact"
	}
	return "ingress"
}

// handle is another one for outgoing packets. On a link with a qdisc "ingress" the kernel
// looks for it among the filters for arriving packets, and must not find one there.
func (f filter) handle() uint32 {
	if f.hook == tcEgress && !f.older {
		return 2
	}
	return 1
}

// command is the command of tc(8) that adds the filter to a link, without the action.
func (f filter) command(dev string) string {
	direction := "ingress"
	if f.hook == tcEgress {
		direction = "egress"
	}
	return fmt.Sprintf("tc qdisc add dev %s %s; tc filter add dev %s %s pref %d handle %d bpf",
		dev, f.qdisc(), dev, direction, cmp.Or(f.pref, filterPref), f.handle())
}

// hooks gives the link the qdisc, unless it has one. A clsact serves arriving packets, too. But
// an ingress would accept a filter for outgoing packets and run it for arriving ones, so that
// is an error here.
func (f filter) hooks(n *NS) error {
	err := n.change(unix.RTM_NEWQDISC, unix.NLM_F_CREATE,
		&nl.TcMsg{Ifindex: int32(f.index), Parent: tcHooks, Handle: tcHandle}, attrString(nl.TCA_KIND, f.qdisc()))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if f.hook == tcEgress {
		return fmt.Errorf(`the link has a qdisc "ingress", and so no hook for outgoing packets: %w`, err)
	}
	return nil
}

// request sends a message about the filter.
func (f filter) request(n *NS, typ, flags int, answer uint16, more ...attribute) ([][]byte, error) {
	every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	msg := &nl.TcMsg{Ifindex: int32(f.index), Parent: cmp.Or(f.hook, tcIngress), Handle: f.handle(),
		Info: cmp.Or(f.pref, filterPref)<<16 | uint32(every)}
	msgs, err := n.request(unix.NETLINK_ROUTE, typ, flags, answer, msg,
		append([]attribute{attrString(nl.TCA_KIND, "bpf")}, more...)...)
	if errors.Is(err, unix.EINVAL) && typ != unix.RTM_NEWTFILTER { // there is no hook
		err = absence{err}
	}
	return msgs, err
}

// del deletes the filter, if its program is one of ours.
func (f filter) del(n *NS) error {
	f, err := f.find(n)
	if err == nil && !strings.HasPrefix(f.name, OwnTable) {
		err = absence{unix.ENOENT}
	}
	if err != nil {
		return err
	}
	_, err = f.request(n, unix.RTM_DELTFILTER, unix.NLM_F_ACK, 0)
	return err
}

// same reports a filter that is missing, that is of another pod, or that has another program, even with the same
// effect.
func (f filter) same(n *NS) error {
	is, err := f.program(n)
	switch {
	case err != nil:
		return err
	case is.name != f.name:
		return differs("the program", is.name, f.name)
	case is.class != f.class:
		return differs("the class", is.class, f.class)
	}
	return nil
}

// check reports a filter that is missing, or whose program does something else. It accepts the program of another
// release. Some of these had no classes.
func (f filter) check(n *NS) error {
	is, err := f.find(n)
	if err == nil && !alike(is.name, f.name) {
		err = differs("the program", is.name, f.name)
	}
	return err
}

// find returns the filter that the kernel has in the place of f.
func (f filter) find(n *NS) (filter, error) {
	is, err := f.program(n)
	if f.hook == tcEgress && absent(err) {
		old := f
		old.older = true
		if was, err := old.program(n); err == nil && !hasPurpose(was.name) {
			return was, nil
		}
	}
	return is, err
}

// program returns f with the name and the class of the program that the kernel has.
func (f filter) program(n *NS) (filter, error) {
	msgs, err := f.request(n, unix.RTM_GETTFILTER, 0, unix.RTM_NEWTFILTER)
	if err == nil && len(msgs) == 0 {
		err = absence{unix.ENOENT}
	}
	if err != nil {
		return f, fmt.Errorf("the link has no such filter: %w", err)
	}
	f.name, f.class = "", 0
	for typ, value := range attrsOf(msgs[0][nl.SizeofTcMsg:]) {
		if typ == nl.TCA_OPTIONS {
			f.parse(value)
		}
	}
	return f, nil
}

// parse reads the name of a filter's program, and the class.
func (f *filter) parse(b []byte) {
	for typ, value := range attrsOf(b) {
		switch typ {
		case nl.TCA_BPF_NAME:
			f.name = unix.ByteSliceToString(value)
		case nl.TCA_BPF_CLASSID:
			f.class = uint16(binary.NativeEndian.Uint32(value))
		}
	}
}

// fingerprint is the name of a program of ours in the kernel: a hash of what the program does,
// and how this release does it.
func fingerprint(what string) string { return objectName(what, bpf.Revision()) }

// objectName returns the name of an object of BPF: 16 digits that stand for its purpose, and how the object does it.
func objectName(what, how string) string {
	is := fnv.New64a()
	io.WriteString(is, what)
	return OwnTable + ":" + hex.EncodeToString(is.Sum(nil)) + ":" + how
}

// hasPurpose reports whether the name of a program has a hash of what it does. Earlier releases had none.
func hasPurpose(name string) bool { return strings.Count(name, ":") == 2 }

// alike reports whether two programs of ours do the same, as far as their names show.
func alike(name, want string) bool {
	if !hasPurpose(name) {
		return strings.HasPrefix(name, OwnTable+":")
	}
	does := want[:strings.LastIndex(want, ":")+1]
	return strings.HasPrefix(name, does)
}
