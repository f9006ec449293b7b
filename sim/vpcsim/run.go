// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// A run reserves a number for one Fabric. The names of the Fabric's directory and namespaces contain the number, for
// example /run/vpcsim0 and /run/netns/vpcsim0-*. The process holds the lock of the directory. A directory without a
// holder of the lock is from a killed process.
type run struct {
	dir  string
	lock *os.File
}

const (
	runPrefix = "/run/vpcsim"
	netnsDir  = "/run/netns"
)

// newRun removes the directories and namespaces of killed processes, and returns a run with the lowest free number.
func newRun() (*run, error) {
	left, err := filepath.Glob(runPrefix + "[0-9]*")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, dir := range left {
		r, err := lockDir(dir)
		if errors.Is(err, errTaken) {
			continue
		}
		if err == nil {
			err = r.remove()
		}
		if err != nil {
			return nil, fmt.Errorf("clear away %s: %w", dir, err)
		}
	}
	for n := 0; ; n++ {
		r, err := lockDir(fmt.Sprintf("%s%d", runPrefix, n))
		if !errors.Is(err, errTaken) {
			return r, err
		}
	}
}

var errTaken = errors.New("another process has it")

func lockDir(dir string) (*run, error) {
	for {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		f, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another process removed the directory after MkdirAll
		}
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			f.Close()
			return nil, errTaken
		}
		ours, err := f.Stat()
		now, gone := os.Stat(dir)
		if err == nil && gone == nil && os.SameFile(ours, now) {
			return &run{dir, f}, nil
		}
		f.Close() // another process removed the directory between Open and Flock
	}
}

func (r *run) netnsPath(name string) string {
	return filepath.Join(netnsDir, filepath.Base(r.dir)+"-"+name)
}

// remove removes the remaining namespaces and the directory, and then releases the lock.
func (r *run) remove() error {
	left, err := filepath.Glob(r.netnsPath("*"))
	for _, path := range left {
		err = errors.Join(err, removeNetNS(path))
	}
	return errors.Join(err, os.RemoveAll(r.dir), r.lock.Close())
}
