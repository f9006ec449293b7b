// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// UnreadByNetworkd returns a file that was written after the running systemd-networkd had started. If there are several
// such files, it returns the first one in the argument's order. systemd-networkd reads networkd.conf(5) only when it
// starts. If it has read all files, or does not run in this network namespace, the result is "".
//
// The change time of a file counts (inode(7)), because package managers set the modification time to an earlier time.
func UnreadByNetworkd(files []string) (string, error) {
	started, err := networkdStart()
	if err != nil || started.IsZero() {
		return "", err
	}
	for _, file := range files {
		var status syscall.Stat_t
		if err := syscall.Stat(file, &status); errors.Is(err, syscall.ENOENT) {
			continue
		} else if err != nil {
			return "", &os.PathError{Op: "stat", Path: file, Err: err}
		}
		if isBetween(time.Unix(status.Ctim.Unix()), started, time.Now()) {
			return file, nil
		}
	}
	return "", nil
}

// isBetween reports whether a file was written after a process had started, and not later than now. A later change time
// shows that the clock was wrong. With such a time, a file would count as unread even after a new start of the process.
func isBetween(written, started, now time.Time) bool {
	return written.After(started) && !written.After(now)
}

// networkdStart returns the time when the systemd-networkd of this network namespace started. If no such process runs,
// it returns the zero time.
func networkdStart() (time.Time, error) {
	ours, err := os.Readlink("/proc/self/ns/net")
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil // no /proc is mounted
	}
	if err != nil {
		return time.Time{}, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return time.Time{}, err
	}
	for _, name := range names {
		const comm = "systemd-network\n" // the kernel cuts the name of a process after 15 bytes
		dir := filepath.Dir(name)
		text, _ := os.ReadFile(name) // ignore the error: the process may have ended
		if theirs, _ := os.Readlink(dir + "/ns/net"); string(text) != comm || theirs != ours {
			continue
		}
		return startOf(dir)
	}
	return time.Time{}, nil
}

// startOf returns the time when a process started. dir is the directory of this process in /proc.
func startOf(dir string) (time.Time, error) {
	stat, err := os.ReadFile(dir + "/stat")
	uptime, err2 := os.ReadFile("/proc/uptime")
	if err = errors.Join(err, err2); err != nil {
		return time.Time{}, err
	}
	// The field starttime has the start of the process, in units of 1/100 second since the boot (proc_pid_stat(5)). The
	// index of starttime in the slice "fields" is 19, because the slice begins after the name of the program.
	const field, perSecond = 19, 100
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	up, _, _ := strings.Cut(string(uptime), " ")
	sinceBoot, err := strconv.ParseFloat(up, 64)
	if err != nil || len(fields) <= field {
		return time.Time{}, fmt.Errorf("cannot parse %s/stat (%q) or /proc/uptime (%q)", dir, stat, uptime)
	}
	ticks, err := strconv.ParseFloat(fields[field], 64)
	age := time.Duration((sinceBoot - ticks/perSecond) * float64(time.Second))
	return time.Now().Add(-age), err
}
