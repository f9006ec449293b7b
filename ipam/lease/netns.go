// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A Shelf is a directory of network namespaces. Each entry is one, or has one at the path
// Below.
type Shelf struct{ Dir, Below string }

// Shelves are the places of namespaces: the names that runtimes give them, and processes, for
// runtimes that give no names.
var Shelves = []Shelf{{"/run/netns", ""}, {"/run/docker/netns", ""}, {"/proc", "ns/net"}}

// paths lists the namespaces on a Shelf. If the directory cannot be read, that is an error
// and not an empty list. So it does not use filepath.Glob, which ignores such errors.
func (s Shelf) paths() (paths []string, err error) {
	entries, err := os.ReadDir(s.Dir)
	if gone(err) {
		return nil, nil
	}
	for _, e := range entries {
		if s.Below == "" || e.IsDir() { // the others of /proc are not processes
			paths = append(paths, filepath.Join(s.Dir, e.Name(), s.Below))
		}
	}
	return paths, err
}

// EachNetNS calls f once for each network namespace on the node, except the caller's own. The
// Name of the namespace is the path at which it was found. If a namespace cannot be opened,
// or f fails, EachNetNS continues, and returns all errors in the end.
func EachNetNS(f func(*nl.NS) error) error { return eachNetNS(Shelves, f) }

// eachNetNS tries what could not be opened a few times more. Linux may deny even root the
// namespaces of a process that is about to end. A moment later, that process is gone.
func eachNetNS(shelves []Shelf, f func(*nl.NS) error) error {
	self, err := inode("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	w := walk{call: f, seen: map[nsID]bool{self: true}, unopened: map[string]error{}}
	for _, s := range shelves {
		paths, err := s.paths()
		w.failed = errors.Join(w.failed, err)
		for _, path := range paths {
			w.visit(path)
		}
	}
	for tries := 5; tries > 0 && len(w.unopened) > 0; tries-- {
		time.Sleep(10 * time.Millisecond)
		again := w.unopened
		w.unopened = map[string]error{}
		for path := range again {
			w.visit(path)
		}
	}
	return errors.Join(w.failed, errors.Join(slices.Collect(maps.Values(w.unopened))...))
}

// A walk goes through the namespaces of the node.
type walk struct {
	call     func(*nl.NS) error
	seen     map[nsID]bool
	unopened map[string]error // by path
	failed   error
}

// visit calls w.call unless it has seen the namespace at path. A namespace that is gone is no
// error, because processes end.
func (w *walk) visit(path string) {
	id, err := inode(path)
	if gone(err) || err == nil && w.seen[id] || path == hostProcess {
		return
	}
	var ns *nl.NS
	if err == nil {
		ns, err = nl.Open(path, path)
	}
	switch {
	case gone(err):
	case err != nil:
		w.unopened[path] = err
	default:
		w.seen[id] = true
		defer ns.Close()
		w.failed = errors.Join(w.failed, w.call(ns))
	}
}

// hostProcess is the namespace of process 1, which is the host's. A sandbox may forbid even
// root to read it.
const hostProcess = "/proc/1/ns/net"

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// An nsID distinguishes namespaces: namespaces(7), "The /proc/[pid]/ns/ directory".
type nsID struct{ dev, ino uint64 }

func inode(path string) (nsID, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nsID{}, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return nsID{uint64(st.Dev), st.Ino}, nil
}
