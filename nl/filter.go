// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A filter is a program of BPF that sees each packet that comes in by a link, before
// anything else does but a capture, or each that goes out by it, after all else but a
// queue; tc-bpf(8).
//
// Since Linux 6.6 a link runs programs without tc as well ("bpftool net": tcx), for less
// than half of the 200 instructions that tc itself costs a packet. But to attach one there,
// and to take down the link, the kernel waits for a grace period of RCU, some 10 ms, and
// nobody can change a link or a route meanwhile (tcx_entry_sync in include/net/tcx.h): a
// pod's ADD would take several times as long, and those of a burst would wait in line.
type filter struct {
	index  int        // of the link
	name   string     // of the program: its fingerprint
	older  bool       // it has the handle that earlier releases gave what goes out
	hook   uint32     // tcEgress, or 0 for what comes in
	pref   uint32     // its place among the filters of the hook, lowest first; 0 is filterPref
	police *nl.RtAttr // what is done to what the program matches; without it the program itself decides
}

// Of linux/pkt_sched.h: where a message says "at the hooks", "what comes in", and
// "what goes out".
const (
	tcHooks   = 0xfffffff1
	tcHandle  = 0xffff0000
	tcIngress = 0xfffffff2
	tcEgress  = 0xfffffff3
)

// filterPref is the place among the filters of a link, lowest first. Those of a
// pod's links are few, and ours lets what it does not take go on to the next.
const filterPref = 72

// add adds the filter with the program of a file, or replaces its program.
func (f filter) add(n *NS, program int) error {
	err := f.hooks(n)
	if err == nil {
		options := attr(nl.TCA_OPTIONS, nil)
		options.AddRtAttr(nl.TCA_BPF_FD, nl.Uint32Attr(uint32(program)))
		options.AddRtAttr(nl.TCA_BPF_NAME, nl.ZeroTerminated(f.name))
		if f.police != nil {
			options.AddChild(f.police)
		} else {
			options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
		}
		_, err = f.request(n, unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_ACK, 0, options)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // no such hook or filter is known
		return fmt.Errorf("%w: %w", ErrNoBPF, err)
	}
	return err
}

// qdisc is the kind of qdisc that has the hook. As long as any link of the machine has a clsact, the
// kernel stops at each packet that goes out by any link, to see whether that link has one,
// too: up to half of a percent of what a packet between two pods costs. So only a link with a
// filter for what goes out gets it, and that filter is the first to be added.
func (f filter) qdisc() string {
	if f.hook == tcEgress {
		return "clsact"
	}
	return "ingress"
}

// handle is another for what goes out. Asked about that on a link with a qdisc "ingress", the
// kernel looks among the filters for what comes in, and must not find one there.
func (f filter) handle() uint32 {
	if f.hook == tcEgress && !f.older {
		return 2
	}
	return 1
}

// command is how tc(8) adds the filter to a link, up to what it does there.
func (f filter) command(dev string) string {
	direction := "ingress"
	if f.hook == tcEgress {
		direction = "egress"
	}
	return fmt.Sprintf("tc qdisc add dev %s %s; tc filter add dev %s %s pref %d handle %d bpf",
		dev, f.qdisc(), dev, direction, cmp.Or(f.pref, filterPref), f.handle())
}

// hooks gives the link the qdisc, unless it has one. One of the other kind stays: a clsact
// serves for what comes in as well; but an ingress would take a filter for what goes out, and
// ask it about what comes in, which is an error here.
func (f filter) hooks(n *NS) error {
	err := n.change(unix.RTM_NEWQDISC, unix.NLM_F_CREATE,
		&nl.TcMsg{Ifindex: int32(f.index), Parent: tcHooks, Handle: tcHandle}, attrString(nl.TCA_KIND, f.qdisc()))
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if f.hook == tcEgress {
		return fmt.Errorf(`the link has a qdisc "ingress", and so no hook for what goes out: %w`, err)
	}
	return nil
}

// request sends a message about the filter.
func (f filter) request(n *NS, typ, flags int, answer uint16, more ...nl.NetlinkRequestData) ([][]byte, error) {
	every := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
	msg := &nl.TcMsg{Ifindex: int32(f.index), Parent: cmp.Or(f.hook, tcIngress), Handle: f.handle(),
		Info: cmp.Or(f.pref, filterPref)<<16 | uint32(every)}
	data := append([]nl.NetlinkRequestData{msg, attrString(nl.TCA_KIND, "bpf")}, more...)
	msgs, err := n.request(unix.NETLINK_ROUTE, typ, flags, answer, data...)
	if errors.Is(err, unix.EINVAL) && typ != unix.RTM_NEWTFILTER { // there is no hook
		err = absence{err}
	}
	return msgs, err
}

// del deletes the filter, if its program is one of ours.
func (f filter) del(n *NS) error {
	f, name, err := f.find(n)
	if err == nil && !strings.HasPrefix(name, OwnTable) {
		err = absence{unix.ENOENT}
	}
	if err != nil {
		return err
	}
	_, err = f.request(n, unix.RTM_DELTFILTER, unix.NLM_F_ACK, 0)
	return err
}

// same reports a filter that is missing, or has another program than this very one.
func (f filter) same(n *NS) error {
	name, err := f.program(n)
	if err == nil && name != f.name {
		err = differs("the program", name, f.name)
	}
	return err
}

// check reports a filter that is missing, or whose program does something else. It may be
// that of another release.
func (f filter) check(n *NS) error {
	_, name, err := f.find(n)
	if err == nil && !alike(name, f.name) {
		err = differs("the program", name, f.name)
	}
	return err
}

// find returns the filter that there is in the place of f, and the name of its program.
func (f filter) find(n *NS) (filter, string, error) {
	name, err := f.program(n)
	if f.hook == tcEgress && absent(err) {
		old := f
		old.older = true
		if name, err := old.program(n); err == nil && !tells(name) {
			return old, name, nil
		}
	}
	return f, name, err
}

// program returns the name of the program of the filter that there is.
func (f filter) program(n *NS) (string, error) {
	msgs, err := f.request(n, unix.RTM_GETTFILTER, 0, unix.RTM_NEWTFILTER)
	if err == nil && len(msgs) == 0 {
		err = absence{unix.ENOENT}
	}
	if err != nil {
		return "", fmt.Errorf("there is no such filter: %w", err)
	}
	return programName(msgs[0])
}

// programName reads the name of a filter's program.
func programName(m []byte) (name string, err error) {
	attrs, err := nl.ParseRouteAttr(m[nl.SizeofTcMsg:])
	for _, a := range attrs {
		if a.Attr.Type != nl.TCA_OPTIONS {
			continue
		}
		options, err := nl.ParseRouteAttr(a.Value)
		if err != nil {
			return "", err
		}
		for _, o := range options {
			if o.Attr.Type == nl.TCA_BPF_NAME {
				name = unix.ByteSliceToString(o.Value)
			}
		}
	}
	return name, err
}

// fingerprint is the name that a program of ours has in the kernel. It tells what the program
// is to do, and how this release does it.
func fingerprint(what string, code []byte) string {
	does, how := fnv.New64a(), fnv.New64a()
	io.WriteString(does, what)
	how.Write(code)
	return fmt.Sprintf("%s:%x:%x", OwnTable, does.Sum(nil), how.Sum(nil))
}

// tells says whether the name of a program tells what it is to do. Earlier releases' did not.
func tells(name string) bool { return strings.Count(name, ":") == 2 }

// alike says whether a program of ours is to do what another is, as far as its name tells.
func alike(name, want string) bool {
	if !tells(name) {
		return strings.HasPrefix(name, OwnTable+":")
	}
	does := want[:strings.LastIndex(want, ":")+1]
	return strings.HasPrefix(name, does)
}
