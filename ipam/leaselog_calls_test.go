// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"maps"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestLeaseLogCost counts the system calls on files that the lease log adds to a warm ADD and a DEL. These are an open,
// an fstat, a write, a close, and Go's check whether it can poll the file.
func TestLeaseLogCost(t *testing.T) {
	n := newNode(t, "m5.large", ec2sim.Config{}, nil)
	n.acquire(8, "old", "one", "two")
	count := func(command, pod string) map[string]int {
		cmd, calls := n.cni(command, pod, nil), map[string]int{}
		cmd.Env = append(cmd.Env, "GOMAXPROCS=1") // with more threads, a namespace may be opened twice: see nl.Node
		tr := &trace.Trace{Every: true, Counts: func(c trace.Call) string {
			name := map[uint64]string{unix.SYS_OPENAT: "open", unix.SYS_FSTAT: "fstat",
				unix.SYS_NEWFSTATAT: "newfstatat", unix.SYS_WRITE: "write",
				unix.SYS_CLOSE: "close", unix.SYS_READ: "read", unix.SYS_PREAD64: "pread", unix.SYS_MKDIRAT: "mkdir",
				unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename", unix.SYS_FTRUNCATE: "truncate",
				unix.SYS_FSYNC: "fsync", unix.SYS_FCNTL: "fcntl", unix.SYS_EPOLL_CTL: "epoll_ctl",
				unix.SYS_FLOCK: "flock"}[c.Nr]
			if name == "write" || name == "read" { // the runtime of Go writes to wake its poller
				if file := c.File(0); !filepath.IsAbs(file) {
					return ""
				}
			}
			if name != "" {
				calls[name]++
			}
			return name
		}}
		var status syscall.WaitStatus
		err := n.Host.Do(func() (err error) { status, err = tr.Run(cmd); return err })
		if err != nil || status != 0 {
			t.Fatalf("%s: %x, %v\n%s", command, status, err, cmd.Stdout)
		}
		return calls
	}
	n.add("before")
	off := map[string]map[string]int{"ADD": count("ADD", "off"), "DEL": count("DEL", "one")}
	n.conf["leaseLog"] = map[string]string{"file": filepath.Join(t.TempDir(), "leases.log")}
	n.add("first") // this ADD creates the log
	on := map[string]map[string]int{"DEL": count("DEL", "two"), "ADD": count("ADD", "on")}
	for verb, calls := range on {
		t.Logf("%s: %v without the log", verb, off[verb])
		for _, more := range []string{"open", "epoll_ctl", "fstat", "write", "close"} {
			off[verb][more]++
		}
		if !maps.Equal(calls, off[verb]) {
			t.Errorf("%s: %v, want %v", verb, calls, off[verb])
		}
	}
}
