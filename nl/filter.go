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

// A filter describes a filter of tc(8) that runs a BPF program on a link's packets: see tc-bpf(8). At ingress, the
// program sees a packet after tcpdump(8) does, but before IP and netfilter. At egress, it sees a packet after IP and
// netfilter, but before the link's queue.
//
// Linux 6.6 and later have tcx, which executes less than half of tc's 200 instructions for each packet. We do not use
// tcx, because the kernel waits some 10 ms for RCU when it attaches a program. It waits again when it deletes the link
// (tcx_entry_sync in include/net/tcx.h). Meanwhile, no process can change a link or a route. So the ADDs of a burst
// would wait for each other.
type filter struct {
	index  int       // the index of the link
	name   string    // the name of the program, from programName
	class  uint16    // the pod's number, which distinguishes pods in the maps of a Splice
	hook   uint32    // tcEgress; 0 stands for tcIngress
	pref   uint32    // the priority among the filters of the hook, lowest first; 0 stands for filterPref
	police attribute // what happens to the packets that the program matches; nil: the program itself decides
}

// Numbers of linux/pkt_sched.h: the parent and the handle of the qdisc, and the parents of filters at ingress and
// egress.
const (
	tcHooks   = 0xfffffff1
	tcHandle  = 0xffff0000
	tcIngress = 0xfffffff2
	tcEgress  = 0xfffffff3
)

// filterPref is the priority of our filters. The kernel runs a link's filters in the order of their priorities, lowest
// first, until one of the filters handles the packet.
const filterPref = 72

// add adds the filter, or replaces the program of an existing filter. The argument "program" is the file descriptor of
// the BPF program.
func (f filter) add(n *NS, program int) error {
	err := f.addQdisc(n)
	if err == nil {
		_, err = f.sendRequest(n, unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK, 0, f.options(program))
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // the kernel lacks the qdisc, or BPF filters
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

// qdiscKind returns the kind of qdisc that the filter needs. The qdisc ingress has only the hook ingress, and clsact
// has both hooks. If any link of the machine has a clsact, the kernel checks for each outgoing packet whether the
// packet's link has a clsact. The check makes a packet between two pods up to 0.5 % slower. So only a link with a
// filter at egress gets a clsact. The filter at egress must be the link's first filter: see addQdisc.
func (f filter) qdiscKind() string {
	if f.hook == tcEgress {
		return "clsact"
	}
	return "ingress"
}

// handle returns the handle of the filter. The handles at ingress and at egress differ. On a link with the qdisc
// ingress, equal handles would cause a mistake: a request for the filter at egress would find the filter at ingress.
func (f filter) handle() uint32 {
	if f.hook == tcEgress {
		return 2
	}
	return 1
}

// command returns the command of tc(8) that adds the qdisc and the filter to a link, without the filter's action.
func (f filter) command(dev string) string {
	direction := "ingress"
	if f.hook == tcEgress {
		direction = "egress"
	}
	return fmt.Sprintf("tc qdisc add dev %s %s; tc filter add dev %s %s pref %d handle %d bpf",
		dev, f.qdiscKind(), dev, direction, cmp.Or(f.pref, filterPref), f.handle())
}

// addQdisc adds the qdisc that the filter needs. It adds nothing if the link has a qdisc of this kind, or a clsact. At
// a link with the qdisc ingress, addQdisc returns an error for a filter at egress: the kernel would accept the filter,
// but run it at ingress.
func (f filter) addQdisc(n *NS) error {
	err := n.applyChange(unix.RTM_NEWQDISC, unix.NLM_F_CREATE,
		&nl.TcMsg{Ifindex: int32(f.index), Parent: tcHooks, Handle: tcHandle}, attrString(nl.TCA_KIND, f.qdiscKind()))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if f.hook == tcEgress {
		return fmt.Errorf(`the link has a qdisc "ingress", which has no hook for outgoing packets: %w`, err)
	}
	return nil
}

func (f filter) sendRequest(n *NS, typ, flags int, answerType uint16, more ...attribute) ([][]byte, error) {
	every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	msg := &nl.TcMsg{Ifindex: int32(f.index), Parent: cmp.Or(f.hook, tcIngress), Handle: f.handle(),
		Info: cmp.Or(f.pref, filterPref)<<16 | uint32(every)}
	msgs, err := n.sendRequest(unix.NETLINK_ROUTE, typ, flags, answerType, msg,
		append([]attribute{attrString(nl.TCA_KIND, "bpf")}, more...)...)
	if errors.Is(err, unix.EINVAL) && typ != unix.RTM_NEWTFILTER { // the link has no qdisc with this hook
		err = notExistError{err}
	}
	return msgs, err
}

// del deletes the kernel's filter at the position of f (see readProgram), if that filter has a program of ours.
func (f filter) del(n *NS) error {
	f, err := f.readProgram(n)
	if err == nil && !strings.HasPrefix(f.name, OwnTable) {
		err = notExistError{unix.ENOENT}
	}
	if err != nil {
		return err
	}
	_, err = f.sendRequest(n, unix.RTM_DELTFILTER, unix.NLM_F_ACK, 0)
	return err
}

// checkSame returns an error if the kernel's filter is missing, has another class, or has another program. Two programs
// differ if their C sources differ, even if they have the same effect.
func (f filter) checkSame(n *NS) error {
	is, err := f.readProgram(n)
	switch {
	case err != nil:
		return err
	case is.name != f.name:
		return mismatchError("the program", is.name, f.name)
	case is.class != f.class:
		return mismatchError("the class", is.class, f.class)
	}
	return nil
}

// check returns an error if the kernel's filter is missing, or if its program has another effect. It accepts a program
// of another release if this program has the same effect. It ignores the class, which some releases did not set.
func (f filter) check(n *NS) error {
	is, err := f.readProgram(n)
	if err == nil && !hasSameEffect(is.name, f.name) {
		err = mismatchError("the program", is.name, f.name)
	}
	return err
}

// readProgram returns f with the class and the program name of the kernel's filter at the position of f. The position
// is the link, the hook, the priority and the handle.
func (f filter) readProgram(n *NS) (filter, error) {
	msgs, err := f.sendRequest(n, unix.RTM_GETTFILTER, 0, unix.RTM_NEWTFILTER)
	if err == nil && len(msgs) == 0 {
		err = notExistError{unix.ENOENT}
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

// programName returns the kernel's name for a program. The argument "effect" is a text that says what the program does.
// The name contains a hash of this text, and then the revision of the program's source.
func programName(effect string) string { return objectName(effect, bpf.Revision()) }

// objectName returns the name of a BPF object: OwnTable, a hash of the content in 16 hexadecimal digits, and the
// suffix.
func objectName(content, suffix string) string {
	is := fnv.New64a()
	io.WriteString(is, content)
	return OwnTable + ":" + hex.EncodeToString(is.Sum(nil)) + ":" + suffix
}

// hasSameEffect reports whether the kernel's program has the same effect as the wanted program. The names of two
// programs with the same effect differ only in the revision.
func hasSameEffect(name, want string) bool {
	return strings.HasPrefix(name, want[:strings.LastIndex(want, ":")+1])
}
