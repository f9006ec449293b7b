// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A requester is a method of NS: request or exact.
type requester func(family, typ, flags int, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error)

// request sends one message of a netlink family and returns the answers of type answer. With
// strict checking the kernel dumps only what the message asks for (one link's addresses, one
// table's routes). Package netlink reads everything and chooses.
func (n *NS) request(family, typ, flags int, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	msgs, err := n.exact(family, typ, flags, answer, data...)
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = nil
	}
	return msgs, err
}

// exact is request for callers who must know that nothing is missing. A dump that was
// interrupted in each try is an error, netlink.ErrDumpInterrupted.
func (n *NS) exact(family, typ, flags int, answer uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.socket(family)
	if err != nil {
		return nil, err
	}
	var msgs [][]byte
	err = retry(func() error {
		req := nl.NewNetlinkRequest(typ, flags)
		req.Data = data
		msgs, err = s.exchange(req, answer)
		return err
	})
	return msgs, kernel(err)
}

// change is a request that adds, changes or deletes something.
func (n *NS) change(typ, flags int, data ...nl.NetlinkRequestData) error {
	_, err := n.request(unix.NETLINK_ROUTE, typ, flags|unix.NLM_F_ACK, 0, data...)
	return err
}

// The flags of a request that adds an object: one that must not exist, and one that may.
const (
	addNew     = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	addReplace = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

// socket returns the socket of a netlink family, and opens it if necessary.
func (n *NS) socket(family int) (*socket, error) {
	if s := n.sockets[family]; s != nil {
		return s, nil
	}
	s, err := n.netlink(family)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.Name, err)
	}
	n.sockets[family] = s
	return s, nil
}

// retry repeats a dump that a change in the kernel has interrupted. A busy node changes
// something all the time, so there is a limit. The last answer may miss what changed while the
// kernel was writing it.
func retry(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

// kernel makes an error of netlink answer to the errors of package fs. EEXIST, ENOENT and EPERM
// do so already.
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

// differs is the error of Check about an object with another property than it should have.
func differs(what string, got, want any) error {
	return fmt.Errorf("%s is %v, not %v", what, got, want)
}

func attr(typ int, data []byte) *nl.RtAttr      { return nl.NewRtAttr(typ, data) }
func attrAddr(typ int, a netip.Addr) *nl.RtAttr { return attr(typ, a.AsSlice()) }
func attr32(typ int, v uint32) *nl.RtAttr       { return attr(typ, nl.Uint32Attr(v)) }
func attrString(typ int, s string) *nl.RtAttr   { return attr(typ, nl.ZeroTerminated(s)) }

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

// ordered reads a number of four bytes in network byte order, as nftables writes it.
func ordered(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// attrsOf are the attributes of a message by their types, up to one that is incomplete.
func attrsOf(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
			if size < unix.SizeofNlAttr || size > len(b) || !yield(int(typ&nl.NLA_TYPE_MASK), b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

func addrFrom(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
