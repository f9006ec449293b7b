// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Holder is a process that holds a lock.
type Holder struct {
	PID     int
	Program string // name of the program, as in /proc/PID/comm; "" if the process has ended
	Stopped bool   // a signal or a debugger has stopped the process, so it cannot release the lock
}

// String returns a message for the operator: which process holds the lock, and how to end this process.
func (h Holder) String() string {
	state := ""
	if h.Stopped {
		state = ", stopped"
	}
	return fmt.Sprintf("process %d (%s%s) holds the lock: if it hangs, end it (kill -9 %d), and the kernel "+
		"releases the lock",
		h.PID, h.Program, state, h.PID)
}

// Holder returns the process that holds the lock of the registry at this moment. If no process holds the lock, Holder
// returns false. Holder does not wait for the lock, and does not take it.
func (r *Registry) Holder() (Holder, bool) { return lockHolder(r.dir) }

// A LockUse says which process holds one of the locks of the registry's directory.
type LockUse struct {
	Lock    string // the name of the lock's file without ".lock"; "registry" if the lock is on the directory
	Waiting int    // how many processes wait for the lock
	Holder
}

// Locks lists the processes that hold a lock of a registry's directory at this moment. The list is sorted by the names
// of the lock files, and the lock on the directory is the last. Locks itself takes no lock. If a process in another PID
// namespace holds a lock, the kernel does not show this process.
func Locks(dir string) ([]LockUse, error) {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.lock"))
	var held []LockUse
	for _, path := range append(files, dir) {
		name := strings.TrimSuffix(filepath.Base(path), ".lock")
		if path == dir {
			name = "registry"
		}
		if pid, waiting := lockUsers(table, path); pid > 0 {
			held = append(held, LockUse{name, waiting, newHolder(pid)})
		}
	}
	return held, err
}

// lockHolder returns the process that holds a lock (flock(2)) on the file with this path.
func lockHolder(path string) (h Holder, ok bool) {
	table, err := os.ReadFile("/proc/locks")
	if err != nil {
		return h, false
	}
	pid, _ := lockUsers(table, path)
	if pid == 0 {
		return h, false
	}
	return newHolder(pid), true
}

// lockUsers returns the PID of the process that holds a lock (flock(2)) on the file with this path, or 0. It also
// returns how many processes wait for the lock. The argument table is the kernel's list of locks (proc_locks(5)).
func lockUsers(table []byte, path string) (pid, waiting int) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0, 0
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range bytes.Lines(table) {
		// a line is "1: FLOCK ADVISORY WRITE 4242 00:19:77 0 EOF"; for a process that waits, "->" precedes "FLOCK"
		f := strings.Fields(string(line))
		waits := len(f) > 6 && f[1] == "->"
		if waits {
			f = f[1:]
		}
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if waits {
			waiting++
		} else if n, err := strconv.Atoi(f[4]); err == nil && n > 0 {
			pid = n
		}
	}
	return pid, waiting
}

func newHolder(pid int) Holder {
	h := Holder{PID: pid}
	h.Program, h.Stopped = processStatus(pid)
	return h
}

// processStatus returns the name of the program that the process runs. It also reports whether the process is stopped
// (proc_pid_stat(5)).
func processStatus(pid int) (name string, stopped bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if err != nil || begin < 0 || end < begin || end+2 >= len(stat) {
		return "", false
	}
	state := stat[end+2]
	return string(stat[begin+1 : end]), state == 'T' || state == 't'
}
