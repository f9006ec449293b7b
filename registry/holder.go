// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Holder is a process that holds a lock.
type Holder struct {
	PID     int
	Program string // the name of the program, as in /proc/PID/comm; "" if the process has ended
	Stopped bool   // by a signal or a debugger: it does not go on by itself
}

// String says which process holds the lock, and what an operator can do about it.
func (h Holder) String() string {
	state := ""
	if h.Stopped {
		state = ", stopped"
	}
	return fmt.Sprintf("process %d (%s%s) holds the lock: if it hangs, end it (kill -9 %d), and the kernel "+
		"releases the lock",
		h.PID, h.Program, state, h.PID)
}

// Holder returns the process that holds a lock of the registry's changes at this moment, if one does. It takes no lock.
func (r *Registry) Holder() (Holder, bool) {
	for _, path := range []string{r.lockFile(lockName), r.dir} {
		if h, ok := holderOf(path); ok {
			return h, true
		}
	}
	return Holder{}, false
}

// holderOf returns the process that holds the flock(2) of a file. The kernel lists the locks in /proc/locks
// (proc_locks(5)); it shows no process of another PID namespace.
func holderOf(path string) (h Holder, ok bool) {
	var st unix.Stat_t
	locks, err := os.ReadFile("/proc/locks")
	if err != nil || unix.Stat(path, &st) != nil {
		return h, false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range bytes.Lines(locks) {
		f := strings.Fields(string(line)) // 1: FLOCK ADVISORY WRITE 4242 00:19:77 0 EOF; a waiter has -> before FLOCK
		if len(f) < 6 || f[1] != "FLOCK" || f[5] != file {
			continue
		}
		if h.PID, err = strconv.Atoi(f[4]); err == nil && h.PID > 0 {
			h.Program, h.Stopped = process(h.PID)
			return h, true
		}
	}
	return h, false
}

// process returns the name of a process, and whether it is stopped (proc_pid_stat(5)).
func process(pid int) (name string, stopped bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if err != nil || begin < 0 || end < begin || end+2 >= len(stat) {
		return "", false
	}
	state := stat[end+2]
	return string(stat[begin+1 : end]), state == 'T' || state == 't'
}
