// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package trace

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// harmless lists system calls without an effect that outlasts the process. A program that is killed before such a call
// leaves the same things behind as a program that is killed after the call.
var harmless = slices.Concat(
	// Memory, threads, signals, and the clock.
	[]uint64{threadMemory, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE, unix.SYS_BRK,
		unix.SYS_CLONE, unix.SYS_CLONE3,
		unix.SYS_SETNS, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_TGKILL, unix.SYS_RT_SIGACTION,
		unix.SYS_RT_SIGPROCMASK,
		unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_PRCTL, unix.SYS_PRLIMIT64, unix.SYS_FUTEX,
		unix.SYS_NANOSLEEP, unix.SYS_SCHED_YIELD, unix.SYS_RESTART_SYSCALL, unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ},
	// Descriptors, which the kernel closes at the end of the process.
	[]uint64{unix.SYS_FCNTL, unix.SYS_SOCKET, unix.SYS_BIND, unix.SYS_CONNECT, unix.SYS_SETSOCKOPT,
		unix.SYS_EPOLL_CREATE1,
		unix.SYS_EPOLL_CTL, unix.SYS_EVENTFD2, unix.SYS_PIPE2},
	// Calls that ask, wait and read.
	[]uint64{unix.SYS_READ, unix.SYS_PREAD64, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_EPOLL_PWAIT,
		unix.SYS_READLINKAT,
		unix.SYS_GETDENTS64, unix.SYS_FSTAT, fstatat, unix.SYS_STATFS, unix.SYS_FSTATFS, unix.SYS_GETSOCKNAME,
		unix.SYS_GETSOCKOPT, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID,
		unix.SYS_GETEGID,
		unix.SYS_SCHED_GETAFFINITY, unix.SYS_UNAME, unix.SYS_GETRANDOM, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY},
)

// Lasting returns the name of a call whose effect can last longer than the process, and "" for any other call.
func Lasting(c Call) string {
	switch {
	case slices.Contains(harmless, c.Nr), c.Nr == unix.SYS_CLOSE, // the end of a process closes its files anyway
		c.Nr == unix.SYS_OPENAT && c.Args[2]&(unix.O_ACCMODE|unix.O_CREAT|unix.O_TRUNC) == unix.O_RDONLY,
		c.Nr == unix.SYS_WRITE && c.Args[0] <= 2,
		c.Nr == unix.SYS_WRITE && strings.HasPrefix(c.File(0), "anon_inode:"):
		return ""
	}
	return Name(c)
}

var callNames = map[uint64]string{
	unix.SYS_BPF: "bpf", unix.SYS_CLOSE: "close", unix.SYS_OPENAT: "openat", unix.SYS_SENDMSG: "sendmsg",
	unix.SYS_SENDTO: "sendto", unix.SYS_SETNS: "setns", unix.SYS_WRITE: "write",
}

// Name returns the name of any system call, with its file or another argument.
func Name(c Call) string {
	name, ok := callNames[c.Nr]
	if !ok {
		return fmt.Sprint("call ", c.Nr)
	}
	switch c.Nr {
	case unix.SYS_OPENAT:
		return name + " " + c.Text(1)
	case unix.SYS_BPF:
		return fmt.Sprint(name, " ", c.Args[0])
	}
	return name + " " + c.File(0)
}
