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

// A Shelf is a directory of network namespaces. If Below is "", each entry of Dir is a namespace. If Below is not "",
// each entry of Dir is a directory with a namespace at the path Below.
type Shelf struct{ Dir, Below string }

// Shelves are the directories in which this process looks for namespaces of pods. In the first two directories,
// runtimes keep namespaces that have names. The directory /proc also shows namespaces without names.
var Shelves = []Shelf{{"/run/netns", ""}, {"/run/docker/netns", ""}, {"/proc", "ns/net"}}

// paths lists the paths of the namespaces on a Shelf. If the directory is missing, the list is empty. paths does not
// call filepath.Glob, because Glob ignores errors when it reads a directory.
func (s Shelf) paths() (paths []string, err error) {
	entries, err := os.ReadDir(s.Dir)
	if gone(err) {
		return nil, nil
	}
	for _, e := range entries {
		if s.Below == "" || e.IsDir() { // in /proc, skip files
			paths = append(paths, filepath.Join(s.Dir, e.Name(), s.Below))
		}
	}
	return paths, err
}

// EachNetNS calls f once for each network namespace on the node, except the caller's own. The Name of the namespace is
// the path at which it was found. If EachNetNS cannot open a namespace, or f fails, EachNetNS continues. In the end, it
// returns all errors.
func EachNetNS(f func(*nl.NS) error) error { return eachNetNS(Shelves, f) }

// eachNetNS does what EachNetNS does, for the shelves in the argument. It tries a few times to open a namespace,
// because even root cannot open the namespaces of a process that is about to end.
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

// visit calls w.call with the namespace at path, unless w has visited this namespace before. If the namespace is gone
// because its process has ended, visit records no error.
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

// hostProcess is the path of process 1's namespace, which is the node's own. In a sandbox, perhaps even root cannot
// read this path.
const hostProcess = "/proc/1/ns/net"

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// An nsID identifies a namespace: namespaces(7), "The /proc/[pid]/ns/ directory".
type nsID struct{ dev, ino uint64 }

func inode(path string) (nsID, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nsID{}, err
	}
	st := fi.Sys().(*syscall.Stat_t)
	return nsID{uint64(st.Dev), st.Ino}, nil
}
