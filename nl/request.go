// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A requester is a method of NS: request or exact.
type requester func(family, typ, flags int, answer uint16, head nl.NetlinkRequestData,
	attrs ...attribute) ([][]byte, error)

// request sends one message of a netlink family, a header and attributes, and returns the answers of type answer. With
// strict checking the kernel dumps only what the message asks for (one link's addresses, one
// table's routes). Package netlink reads everything and chooses.
func (n *NS) request(
	family, typ, flags int, answer uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	msgs, err := n.exact(family, typ, flags, answer, head, attrs...)
	if err == nl.ErrDumpInterrupted {
		err = nil
	}
	return msgs, err
}

// exact is request for callers who must know that nothing is missing. A dump that was
// interrupted in each try is an error, nl.ErrDumpInterrupted. Where the kernel has no mark, two dumps that agree count.
func (n *NS) exact(
	family, typ, flags int, answer uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	var msgs [][]byte
	err := retry(func() (err error) {
		before := msgs
		msgs, err = n.once(family, typ, flags, answer, head, attrs...)
		agree := slices.EqualFunc(msgs, before, bytes.Equal)
		if err == nl.ErrDumpInterrupted && agree && len(msgs) > 0 && unmarked(typ, msgs[0]) {
			err = nil
		}
		return err
	})
	return msgs, kernel(err)
}

// once is exact without further tries. The answers of an interrupted dump come with its error.
func (n *NS) once(
	family, typ, flags int, answer uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.socket(family)
	if err != nil {
		return nil, err
	}
	return s.exchange(typ, flags, answer, head, attrs)
}

// change is a request that adds, changes or deletes something.
func (n *NS) change(typ, flags int, head nl.NetlinkRequestData, attrs ...attribute) error {
	_, err := n.request(unix.NETLINK_ROUTE, typ, flags|unix.NLM_F_ACK, 0, head, attrs...)
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
// something all the time, so there is a limit. The last answer may miss what changed while the kernel was writing it.
// A list that the kernel does not mark may also miss what did not change.
func retry(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); err != nl.ErrDumpInterrupted { // errors.Is takes a hundred times as long
			return err
		}
	}
	return err
}

// kernel makes an error of netlink answer to the errors of package fs. EEXIST, ENOENT and EPERM
// do so already.
func kernel(err error) error {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL:
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
