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
// (NETLINK_GET_STRICT_CHK). If changes interrupt the dump in each try (see retryDump), sendRequest returns the last
// dump, which is perhaps incomplete.
func (n *NS) sendRequest(
	family, typ, flags int, answerType uint16, head nl.NetlinkRequestData, attrs ...attribute,
) ([][]byte, error) {
	msgs, err := n.sendExact(family, typ, flags, answerType, head, attrs...)
	if err == nl.ErrDumpInterrupted {
		err = nil
	}
	return msgs, err
}

// sendExact is like sendRequest, but returns the error nl.ErrDumpInterrupted instead of a dump that is perhaps
// incomplete. The kernel does not report the interruption of some dumps (see isUnmarkedDump). If such a dump is perhaps
// incomplete, sendExact accepts it only if two tries in a row return equal dumps.
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

// The flags of a request that adds an object. If the object exists, the kernel refuses addNew, and replaces the object
// on addReplace.
const (
	addNew     = unix.NLM_F_CREATE | unix.NLM_F_EXCL
	addReplace = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
)

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

// retryDump calls the function dump. If a change in the kernel has interrupted the dump, it calls dump again, ten times
// at most: on a busy node, something changes all the time. The last dump may lack objects that changed during the dump.
// An unmarked dump (see isUnmarkedDump) may also lack objects that did not change.
func retryDump(dump func() error) error {
	var err error
	for range 10 {
		if err = dump(); err != nl.ErrDumpInterrupted { // errors.Is takes a hundred times as long
			return err
		}
	}
	return err
}

// wrapNotExist makes errors.Is find fs.ErrNotExist in the kernel's errors about a missing object. The error ENOENT
// needs no wrapper.
func wrapNotExist(err error) error {
	switch errno, _ := errors.AsType[unix.Errno](err); errno {
	case unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL:
		return notExistError{err}
	}
	return err
}

// A notExistError is an error of the kernel that counts as fs.ErrNotExist.
type notExistError struct{ error }

func (a notExistError) Is(target error) bool { return target == fs.ErrNotExist }
func (a notExistError) Unwrap() error        { return a.error }

// mismatchError returns the error of a Check method about a wrong property of an object.
func mismatchError(what string, got, want any) error {
	return fmt.Errorf("%s is %v, not %v", what, got, want)
}
