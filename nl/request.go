// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// request sends one message of a netlink family and returns the answers of type
// answer. It is for what package netlink cannot ask: with strict checking, which
// is set here, the kernel dumps only what is asked for (one link's addresses,
// one table's routes) where package netlink reads everything and chooses.
func (n *NS) request(family, typ, flags int, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	sockets, err := n.socket(family)
	if err != nil {
		return nil, err
	}
	var msgs [][]byte
	err = retry(func() error {
		req := nl.NewNetlinkRequest(typ, flags)
		req.Sockets = sockets
		req.Data = data
		msgs, err = req.Execute(family, answer)
		return err
	})
	return msgs, kernel(err)
}

// socket returns the socket of a netlink family, opened if it was not.
func (n *NS) socket(family int) (map[int]*nl.SocketHandle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sockets[family] == nil {
		s, err := nl.GetNetlinkSocketAt(n.fd, netnsNone, family)
		if err != nil {
			return nil, fmt.Errorf("open netlink in %s: %w", n.Name, err)
		}
		// Kernels before 4.20 do not know the option: they answer with more than
		// was asked for, which the readers sift. NETLINK_EXT_ACK stays off: at the
		// end of a dump that failed, package netlink 1.3.1 reads beyond the message.
		_ = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
		n.sockets[family] = &nl.SocketHandle{Socket: s}
	}
	return map[int]*nl.SocketHandle{family: n.sockets[family]}, nil
}

// netnsNone is netns.None(): come back to where the thread was.
const netnsNone = -1

// retry repeats a dump that a change in the kernel has interrupted. A busy node
// changes something all the time, hence the limit; after it the last answer
// stands, which may miss what changed while it was read.
func retry(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return nil
}

// kernel gives an error of netlink the meaning that package fs has for it.
// EEXIST, ENOENT and EPERM have it already.
func kernel(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.EADDRNOTAVAIL):
		return absence{err}
	}
	return err
}

// absence is an error of the kernel that means fs.ErrNotExist, in the kernel's words.
type absence struct{ error }

func (a absence) Is(target error) bool { return target == fs.ErrNotExist }
func (a absence) Unwrap() error        { return a.error }

// differs is what Check says of an object that is there otherwise than it should be.
func differs(what string, got, want any) error {
	return fmt.Errorf("%s is %v, not %v", what, got, want)
}

func attr(typ int, data []byte) *nl.RtAttr    { return nl.NewRtAttr(typ, data) }
func attr32(typ int, v uint32) *nl.RtAttr     { return attr(typ, nl.Uint32Attr(v)) }
func attrString(typ int, s string) *nl.RtAttr { return attr(typ, nl.ZeroTerminated(s)) }

// number reads a number of one, two or four bytes.
func number(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

func ipnet(p netip.Prefix) *net.IPNet {
	if !p.IsValid() {
		return nil
	}
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func addrFrom(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// familyOf is the address family of an address: 0, all, for the zero address.
func familyOf(a netip.Addr) int {
	switch {
	case !a.IsValid():
		return unix.AF_UNSPEC
	case a.Is4():
		return unix.AF_INET
	}
	return unix.AF_INET6
}
