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

// request sends one message of a netlink family, with a header and attributes, and returns the answers of the type
// answer. With strict checking, the kernel dumps only the objects for which the message asks, for example one link's
// addresses or one table's routes. Package netlink instead reads all objects, and then chooses.
func (n *NS) request(
	family, typ, flags int, answer uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	msgs, err := n.exact(family, typ, flags, answer, head, attrs...)
	if err == nl.ErrDumpInterrupted {
		err = nil
	}
	return msgs, err
}

// exact is request for callers who must know that no object is missing. If changes interrupt the dump in each try, the
// error is nl.ErrDumpInterrupted. If the kernel does not mark such dumps as interrupted (see unmarked), exact accepts a
// dump that is equal to the dump before it.
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

// once is exact with only one try. If a change interrupts a dump, once returns the answers and the error
// nl.ErrDumpInterrupted.
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

// The flags of a request that adds an object. With addNew, the object must not exist; with addReplace, it may exist.
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

// retry repeats a dump that a change in the kernel has interrupted. On a busy node, something changes all the time, so
// retry limits the number of tries. The last answer may lack objects that changed while the kernel was writing the
// answer. A list that the kernel does not mark (see unmarked) may also lack objects that did not change.
func retry(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); err != nl.ErrDumpInterrupted { // errors.Is takes a hundred times as long
			return err
		}
	}
	return err
}

// kernel wraps an error of netlink that means fs.ErrNotExist, so that errors.Is finds fs.ErrNotExist in it. For EEXIST,
// ENOENT and EPERM, errors.Is finds the errors of package fs without such a wrapper.
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

// differs returns the error of Check about an object with a wrong property.
func differs(what string, got, want any) error {
	return fmt.Errorf("%s is %v, not %v", what, got, want)
}
