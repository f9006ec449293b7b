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

// A filter is a BPF program at a link, tc-bpf(8). A filter at the ingress sees each packet after captures, but before
// all other code of the kernel. A filter at the egress sees each packet before the queue, but after all other code.
//
// Since Linux 6.6 a link can run programs without tc ("bpftool net": tcx). Then a packet costs less than half of the
// 200 instructions that tc itself costs. But when such a program is attached, the kernel waits for a grace period of
// RCU, some 10 ms (tcx_entry_sync in include/net/tcx.h). The kernel waits again when the program's link is deleted. No
// process can change a link or a route meanwhile. A pod's ADD would take several times as long, and the ADDs of a burst
// would wait for each other.
type filter struct {
	index  int       // of the link
	name   string    // of the program: its fingerprint
	class  uint16    // the number of the pod: the filter's program remembers packets under this number
	older  bool      // the filter has the handle that earlier releases used for outgoing packets
	hook   uint32    // tcEgress, or 0 for arriving packets
	pref   uint32    // its priority among the filters of the hook, lowest first; 0 is filterPref
	police attribute // the action on packets that the program matches; nil: the program itself decides
}

// Numbers of linux/pkt_sched.h: the parent and the handle of the qdisc, and the parents of the filters for arriving and
// for outgoing packets.
const (
	tcHooks   = 0xfffffff1
	tcHandle  = 0xffff0000
	tcIngress = 0xfffffff2
	tcEgress  = 0xfffffff3
)

// filterPref is the priority among the filters of a link, lowest first. A pod's links have few filters. If our filter
// does not handle a packet, the kernel continues with the next filter.
const filterPref = 72

// add adds the filter, or replaces its program. program is the file descriptor of the program.
func (f filter) add(n *NS, program int) error {
	err := f.hooks(n)
	if err == nil {
		_, err = f.request(n, unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK, 0, f.options(program))
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // the kernel has no such hook or no such filter
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

// qdisc returns the kind of qdisc that has the hook. If one link of the machine has a clsact, the kernel looks for a
// clsact whenever a packet leaves by any link. This search takes up to 0.5 % of the time that a packet between two pods
// takes. So only a link with a filter for outgoing packets gets a clsact, and that filter must be added before a filter
// for arriving packets.
func (f filter) qdisc() string {
	if f.hook == tcEgress {
		return "clsact"
	}
	return "ingress"
}

// handle returns the handle of the filter. A filter for outgoing packets has another handle than a filter for arriving
// packets. On a link with a qdisc "ingress", the kernel looks for a filter for outgoing packets among the filters for
// arriving packets. The handles differ, so the kernel does not find a filter there.
func (f filter) handle() uint32 {
	if f.hook == tcEgress && !f.older {
		return 2
	}
	return 1
}

// command returns the command of tc(8) that adds the filter to a link, without the action.
func (f filter) command(dev string) string {
	direction := "ingress"
	if f.hook == tcEgress {
		direction = "egress"
	}
	return fmt.Sprintf("tc qdisc add dev %s %s; tc filter add dev %s %s pref %d handle %d bpf",
		dev, f.qdisc(), dev, direction, cmp.Or(f.pref, filterPref), f.handle())
}

// hooks gives the link the qdisc that has the filter's hook, if the link has no such qdisc. A clsact also serves
// arriving packets. But a qdisc "ingress" would accept a filter for outgoing packets, and run it for arriving packets.
// So hooks returns an error if the filter is for outgoing packets and the link has a qdisc "ingress".
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

// request sends a message about the filter, and returns the answers.
func (f filter) request(n *NS, typ, flags int, answer uint16, more ...attribute) ([][]byte, error) {
	every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	msg := &nl.TcMsg{Ifindex: int32(f.index), Parent: cmp.Or(f.hook, tcIngress), Handle: f.handle(),
		Info: cmp.Or(f.pref, filterPref)<<16 | uint32(every)}
	msgs, err := n.request(unix.NETLINK_ROUTE, typ, flags, answer, msg,
		append([]attribute{attrString(nl.TCA_KIND, "bpf")}, more...)...)
	if errors.Is(err, unix.EINVAL) && typ != unix.RTM_NEWTFILTER { // the link has no hook
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

// same returns an error if the filter is missing, is of another pod, or has another program. The program of another
// release counts as another program, even if it has the same effect.
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

// check returns an error if the filter is missing, or if its program has another effect. It accepts the programs of
// other releases. It does not compare the classes, because filters of some releases had none.
func (f filter) check(n *NS) error {
	is, err := f.find(n)
	if err == nil && !alike(is.name, f.name) {
		err = differs("the program", is.name, f.name)
	}
	return err
}

// find returns the filter that the kernel has in the place of f: at the same link and hook, with the same priority and
// handle. For outgoing packets, find may return a filter of an earlier release, which has another handle.
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

// parse reads the name of a filter's program, and the filter's class.
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

// fingerprint returns the name that one of our programs has in the kernel. The parameter what describes the effect of
// the program. The name has a hash of this text, and the revision of the program's source.
func fingerprint(what string) string { return objectName(what, bpf.Revision()) }

// objectName returns the name of a BPF object. The name has a hash of the parameter what, in 16 digits, and then the
// parameter how.
func objectName(what, how string) string {
	is := fnv.New64a()
	io.WriteString(is, what)
	return OwnTable + ":" + hex.EncodeToString(is.Sum(nil)) + ":" + how
}

// hasPurpose reports whether the name of a program has a hash of the program's effect. The names of earlier releases
// did not have this hash.
func hasPurpose(name string) bool { return strings.Count(name, ":") == 2 }

// alike reports whether two programs of ours do the same, as far as their names show.
func alike(name, want string) bool {
	if !hasPurpose(name) {
		return strings.HasPrefix(name, OwnTable+":")
	}
	does := want[:strings.LastIndex(want, ":")+1]
	return strings.HasPrefix(name, does)
}
