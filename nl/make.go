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

// Make makes a network namespace without a name, with its loopback up. Only [NS.Path] leads to the namespace. So the
// namespace ends with Close, and at the latest with the process, even if the process is killed. The kernel then removes
// the namespace's links.
func Make(name string) (*NS, error) {
	fd, err := newNetNS()
	if err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, err)
	}
	n := open(name, fd)
	if err := (Up{Dev: "lo"}).Add(n); err != nil && !errors.Is(err, errSame) {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Path returns a path by which other processes can open the namespace, as long as this process has it open.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// newNetNS makes a namespace on a thread, which then returns to its old namespace. If the thread cannot return, it ends
// with its goroutine.
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
