// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// stripCard removes the things that a pod has attached to a network card: BPF programs, and links whose master is the
// card. If these things stayed, they would move with the card, and could see, change or drop the next pod's packets.
func (n *NS) stripCard(l Link) error { return errors.Join(n.delLinksAbove(l), n.delPrograms(l)) }

// delPrograms detaches the programs of XDP and tcx from a network card. Unlike filters of tc, these programs move with
// the card. They stay attached even if no process has them open.
func (n *NS) delPrograms(l Link) error { return errors.Join(n.delXDP(l), n.delTCX(l)) }

// delLinksAbove deletes the links of the namespace whose master is l. It does not find a link that the pod has moved to
// another namespace: for such a link, see [NS.Unshared] and [NS.Slaves].
func (n *NS) delLinksAbove(l Link) error {
	above, failed := n.linksAbove(l)
	for _, a := range above {
		msg := linkMessage()
		msg.Index = int32(a.Index)
		n.forgetLink(a.Name)
		if err := n.applyChange(unix.RTM_DELLINK, 0, msg); err != nil && !isNotExist(err) {
			failed = errors.Join(failed, fmt.Errorf("delete %s, which is on %s: %w", a.Name, l.Name, err))
		}
	}
	return failed
}

// linksAbove lists the links of the namespace whose master is l, a link of the same namespace.
func (n *NS) linksAbove(l Link) ([]Link, error) {
	links, err := n.Links()
	return slices.DeleteFunc(links, func(a Link) bool {
		return a.Peer != l.Index || a.peerNS != 0 || !borrowsMAC(a)
	}), err
}

// delXDP detaches the XDP programs from a link. It ignores EOPNOTSUPP, because not all drivers have all modes of XDP.
// The kernel refuses to detach a program that a bpf_link holds (EBUSY). This program stays as long as any process has
// the bpf_link open. The kernel also refuses if an upper link, such as a bond, has a program (EEXIST).
func (n *NS) delXDP(l Link) (failed error) {
	for _, mode := range []uint32{unix.XDP_FLAGS_SKB_MODE, unix.XDP_FLAGS_DRV_MODE, unix.XDP_FLAGS_HW_MODE} {
		msg := linkMessage()
		msg.Index = int32(l.Index)
		const none = math.MaxUint32 // -1
		xdp := nest(unix.IFLA_XDP|unix.NLA_F_NESTED, attr32(nl.IFLA_XDP_FD, none), attr32(nl.IFLA_XDP_FLAGS, mode))
		if err := n.applyChange(unix.RTM_SETLINK, 0, msg, xdp); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			failed = errors.Join(failed, fmt.Errorf("detach XDP from %s: %w", l.Name, err))
		}
	}
	return failed
}

// Numbers of linux/bpf.h that package unix does not have.
const (
	tcxIngress, tcxEgress = 46, 47
	mostTCX               = 64 // BPF_MPROG_MAX
)

// delTCX detaches the programs of tcx from a link. It uses Do, because bpf(2) looks for the link in the namespace of
// the calling thread.
func (n *NS) delTCX(l Link) error {
	return n.Do(func() (failed error) {
		for _, hook := range []uint32{tcxIngress, tcxEgress} {
			programs, links, err := queryTCX(l.Index, hook)
			if err != nil {
				return fmt.Errorf("list the tcx programs of %s: %w", l.Name, err)
			}
			for i, id := range programs {
				if err := detachTCX(l.Index, hook, id, links[i]); err != nil && !isNotExist(wrapNotExist(err)) {
					failed = errors.Join(failed, fmt.Errorf("detach the tcx program %d from %s: %w", id, l.Name, err))
				}
			}
		}
		return failed
	})
}

// queryTCX lists the IDs of the programs at a hook of tcx. For each program, the result "links" has the ID of the
// bpf_link that holds the program, or 0. On Linux before 6.6, which has no tcx, both lists are empty.
func queryTCX(index int, hook uint32) (programs, links []uint32, err error) {
	programs, links = make([]uint32, mostTCX), make([]uint32, mostTCX)
	query := struct { // of union bpf_attr, for BPF_PROG_QUERY
		index, hook, queryFlags, attachFlags uint32
		programs                             *uint32
		count, _                             uint32
		programFlags                         uint64
		links                                *uint32
		linkFlags, revision                  uint64
	}{index: uint32(index), hook: hook, programs: &programs[0], count: mostTCX, links: &links[0]}
	_, err = bpfCommand(unix.BPF_PROG_QUERY, unsafe.Pointer(&query), unsafe.Sizeof(query))
	runtime.KeepAlive(&query)
	if errors.Is(err, unix.EINVAL) {
		return nil, nil, nil
	}
	count := min(query.count, mostTCX)
	return programs[:count], links[:count], err
}

// detachTCX detaches a program from a hook of tcx. If a bpf_link holds the program, detachTCX detaches the bpf_link.
// The kernel detaches even a bpf_link that is pinned, or that a process has open.
func detachTCX(index int, hook, program, link uint32) error {
	open, id := uintptr(unix.BPF_PROG_GET_FD_BY_ID), program
	if link != 0 {
		open, id = unix.BPF_LINK_GET_FD_BY_ID, link
	}
	which := struct{ id, next, flags uint32 }{id: id}
	fd, err := bpfCommand(open, unsafe.Pointer(&which), unsafe.Sizeof(which))
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if link != 0 {
		file := uint32(fd)
		_, err = bpfCommand(unix.BPF_LINK_DETACH, unsafe.Pointer(&file), unsafe.Sizeof(file))
		return err
	}
	detach := struct{ index, program, hook, flags uint32 }{uint32(index), uint32(fd), hook, 0}
	_, err = bpfCommand(unix.BPF_PROG_DETACH, unsafe.Pointer(&detach), unsafe.Sizeof(detach))
	return err
}

func bpfCommand(command uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(r), nil
}
