// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
)

// Make creates a network namespace that is mounted nowhere, and brings its link lo up. Only messages use the name. The
// kernel deletes the namespace and its links at Close, or when the process ends. Other processes can open the namespace
// at [NS.Path].
func Make(name string) (*NS, error) {
	fd, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	n := newNS(name, fd)
	if err := (Up{Dev: "lo"}).Add(n); err != nil && !errors.Is(err, errSame) {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Path returns a path at which other processes can open the namespace as long as this process has it open.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// newNetNS creates a namespace. The kernel puts the creating thread into the new namespace. newNetNS moves the thread
// back. If the thread cannot move back, it ends.
func newNetNS() (netns.NsHandle, error) {
	type made struct {
		fd  netns.NsHandle
		err error
	}
	done := make(chan made)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- made{err: err}
			return
		}
		defer home.Close()
		fd, err := netns.New()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- made{fd, err}
	}()
	m := <-done
	return m.fd, m.err
}
