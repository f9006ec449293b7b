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

// Make makes a network namespace without a name, with its loopback up. No file leads to it except [NS.Path], so it ends
// with Close and also with the process, however the process ends. The kernel then removes the links in it.
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

// Path leads other processes to a namespace that this process has open, for as long as it is open.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.fd) }

// newNetNS makes a namespace, and brings the thread back. A thread that cannot come back ends with its goroutine.
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
