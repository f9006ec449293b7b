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

// A sender is one of the methods sendRequest and sendExact of an NS.
type sender func(family, typ, flags int, answer uint16, head nl.NetlinkRequestData,
	attrs ...attribute) ([][]byte, error)

// sendRequest sends a message of a netlink family, and returns the answers of the type answerType. For a dump, the
// kernel sends only the objects that match head and attrs, for example the routes of one table
// (NETLINK_GET_STRICT_CHK). vishvananda/netlink reads all objects from the kernel, and filters them afterwards. If the
// kernel reports that a change has interrupted a dump, sendRequest tries again (see retryDump). If the last try is also
// interrupted, sendRequest returns the dump of this try, which is perhaps incomplete.
func (n *NS) sendRequest(
	family, typ, flags int, answerType uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	msgs, err := n.sendExact(family, typ, flags, answerType, head, attrs...)
	if err == nl.ErrDumpInterrupted {
		err = nil
	}
	return msgs, err
}

// sendExact is like sendRequest, but never returns a dump that is perhaps incomplete. If changes interrupt the dump in
// each try, the error is nl.ErrDumpInterrupted. For some dumps, the kernel does not report whether a change has
// interrupted them (see isUnmarkedDump). If such a dump is perhaps incomplete, sendExact accepts it only if the
// previous try had an equal dump.
func (n *NS) sendExact(
	family, typ, flags int, answerType uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	var msgs [][]byte
	err := retryDump(func() (err error) {
		before := msgs
		msgs, err = n.sendOnce(family, typ, flags, answerType, head, attrs...)
		agree := slices.EqualFunc(msgs, before, bytes.Equal)
		if err == nl.ErrDumpInterrupted && agree && len(msgs) > 0 && isUnmarkedDump(typ, msgs[0]) {
			err = nil
		}
		return err
	})
	return msgs, wrapNotExist(err)
}

// sendOnce is like sendExact, but tries only once. If a change interrupts a dump, sendOnce returns the answers and the
// error nl.ErrDumpInterrupted.
func (n *NS) sendOnce(
	family, typ, flags int, answerType uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.familySocket(family)
	if err != nil {
		return nil, err
	}
	return s.roundTrip(typ, flags, answerType, head, attrs)
}

// applyChange sends a request that adds, changes or deletes a link, an address, a route, a rule or a neighbour.
func (n *NS) applyChange(typ, flags int, head nl.NetlinkRequestData, attrs ...attribute) error {
	_, err := n.sendRequest(unix.NETLINK_ROUTE, typ, flags|unix.NLM_F_ACK, 0, head, attrs...)
	return err
}

// The flags of a request that adds an object. If the object exists, the kernel refuses a request with addNew, and
// replaces the object on a request with addReplace.
const (
	addNew     = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	addReplace = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

// familySocket returns the namespace's socket of a netlink family, and opens it if necessary.
func (n *NS) familySocket(family int) (*socket, error) {
	if s := n.sockets[family]; s != nil {
		return s, nil
	}
	s, err := n.openNetlink(family)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.Name, err)
	}
	n.sockets[family] = s
	return s, nil
}

// retryDump calls the parameter dump, which is a function that reads a dump from the kernel. If a change in the kernel
// has interrupted the dump, retryDump calls the function again. It calls the function ten times at most, because on a
// busy node, something changes all the time. The last dump may lack objects that changed during the dump. An unmarked
// dump (see isUnmarkedDump) may also lack objects that did not change.
func retryDump(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); err != nl.ErrDumpInterrupted { // errors.Is takes a hundred times as long
			return err
		}
	}
	return err
}

// wrapNotExist wraps those errors of the kernel that mean that an object does not exist. In the returned error,
// errors.Is finds fs.ErrNotExist. The error ENOENT needs no wrapper, because errors.Is finds fs.ErrNotExist in it
// anyway.
func wrapNotExist(err error) error {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL:
		return notExistError{err}
	}
	return err
}

// A notExistError has the text of an error of the kernel, and counts as fs.ErrNotExist for errors.Is.
type notExistError struct{ error }

func (a notExistError) Is(target error) bool { return target == fs.ErrNotExist }
func (a notExistError) Unwrap() error        { return a.error }

// mismatchError returns the error of a Check method about a wrong property of an object.
func mismatchError(what string, got, want any) error {
	return fmt.Errorf("%s is %v, not %v", what, got, want)
}
