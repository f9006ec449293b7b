// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netns"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A Namespace is a network namespace with its loopback up. Do runs a function in the namespace. Processes that the
// function starts are in the namespace, too.
type Namespace struct {
	*nl.NS
	Path string // such as /run/netns/vpcsim0-node1

	open   []io.Closer
	closed bool
}

// NewNamespace creates an empty namespace, as a container runtime does for a pod. The method Close of the Fabric also
// closes the Namespace.
func (f *Fabric) NewNamespace(name string) (*Namespace, error) {
	n, err := MakeNamespace(name, filepath.Base(f.run.netnsPath(name)))
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made = append(f.made, n)
	return n, nil
}

// MakeNamespace creates an empty namespace that belongs to no Fabric. The argument "file" is the name of the
// namespace's file in the directory of ip-netns(8).
func MakeNamespace(name, file string) (*Namespace, error) {
	if err := createNetNS(file); err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", name, err)
	}
	path := filepath.Join(netnsDir, file)
	ns, err := nl.Open(name, path)
	if err != nil {
		return nil, errors.Join(err, removeNetNS(path))
	}
	n := &Namespace{NS: ns, Path: path}
	if err := (nl.Up{Dev: "lo"}).Add(ns); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", name, err), n.Close())
	}
	return n, nil
}

// Close closes the sockets on which the Namespace answers, and removes the namespace. The kernel keeps the namespace
// while a process is in it. A second Close does nothing.
func (n *Namespace) Close() error {
	if n.closed {
		return nil
	}
	n.closed = true
	var err error
	for _, c := range n.open {
		err = errors.Join(err, c.Close())
	}
	return errors.Join(err, n.NS.Close(), removeNetNS(n.Path))
}

// createNetNS creates a namespace, with a file of this name in the directory of ip-netns(8).
func createNetNS(name string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that Go ends this thread, which stays in the new namespace
		ns, err := netns.NewNamed(name)
		if err == nil {
			err = ns.Close()
		}
		done <- err
	}()
	return <-done
}

// removeNetNS removes a namespace. It also removes what is there if a process was killed while it created the
// namespace.
func removeNetNS(path string) error {
	err := syscall.Unmount(path, syscall.MNT_DETACH)
	// EINVAL: nothing is mounted there, because the process was killed before the mount.
	if err != nil && err != syscall.EINVAL && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
