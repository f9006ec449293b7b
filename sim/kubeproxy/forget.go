// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"encoding/binary"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// forget empties a namespace's connection tracker. Rules of nat see only a connection's first packet. Without forget, a
// datagram from a port that was used before would for two minutes go to a backend of rules that were removed. Before there
// were rules, a datagram to a ClusterIP went to no backend, and for 30 seconds others from its port would follow it.
// kube-proxy also deletes such entries.
func forget(n *nl.NS) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		if err := unix.Sendto(fd, deleteAll(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return os.NewSyscallError("sendto", err)
		}
		answer := make([]byte, os.Getpagesize())
		size, _, err := unix.Recvfrom(fd, answer, 0)
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		return acknowledged(answer[:size])
	})
}

// deleteAll returns the request to delete all connections of all families: it has no attribute. See netlink(7), struct
// nfgenmsg of linux/netfilter/nfnetlink.h, IPCTNL_MSG_CT_DELETE of linux/netfilter/nfnetlink_conntrack.h.
func deleteAll() []byte {
	const remove, size = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2, unix.SizeofNlMsghdr + 4
	m := binary.NativeEndian.AppendUint32(nil, size)
	m = binary.NativeEndian.AppendUint16(m, remove)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	return append(m, make([]byte, size-len(m))...) // sequence, port; family, version, id
}

// acknowledged parses an answer of NLMSG_ERROR.
func acknowledged(answer []byte) error {
	if len(answer) < unix.SizeofNlMsghdr+4 {
		return os.NewSyscallError("flush of conntrack", syscall.EBADMSG)
	}
	if code := int32(binary.NativeEndian.Uint32(answer[unix.SizeofNlMsghdr:])); code != 0 {
		return os.NewSyscallError("flush of conntrack", syscall.Errno(-code))
	}
	return nil
}
