// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnlocked checks that a lock ends with its owner. A process that was forked in the meantime still has the locked
// file open, and must not keep the lock.
func TestUnlocked(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := r.Lock(t.Context(), "grow")
	if err != nil {
		t.Fatal(err)
	}
	var inherited []int
	if err := r.Change(t.Context(), func(*State) { inherited = duplicates(t, r.dir) }); err != nil {
		t.Fatal(err)
	}
	unlock()
	if len(inherited) != 3 {
		t.Errorf("a change under a lock had %d files open, want the two locks and the directory", len(inherited))
	}
	for _, fd := range inherited {
		path, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Errorf("%s is still locked: %v", path, err)
		}
		f.Close()
		unix.Close(fd)
	}
}

// duplicates duplicates the file descriptors of this process for files below a directory, as fork(2) does.
func duplicates(t *testing.T, dir string) (all []int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(e os.DirEntry) bool {
		path, err := os.Readlink("/proc/self/fd/" + e.Name())
		return err != nil || !strings.HasPrefix(path, dir)
	})
	for _, e := range files {
		fd, err := strconv.Atoi(e.Name())
		if err == nil {
			fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fd)
	}
	return all
}
