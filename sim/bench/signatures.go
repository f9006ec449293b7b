// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import "golang.org/x/sys/unix"

// A kind is what an argument of a system call is. A kind above the others is the number of bytes that it points at.
type kind int

const (
	value  kind = -iota
	text        // a string
	sized       // as many bytes as the next argument says
	answer      // memory for the kernel's answer
)

// ownCalls are those that Go's runtime makes for itself: memory, threads, signals, and waiting. When it makes them
// differs from run to run.
var ownCalls = []uint64{
	unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MPROTECT, unix.SYS_BRK, unix.SYS_PRCTL,
	unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_FUTEX, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_TGKILL,
	unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_NANOSLEEP,
	unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
	unix.SYS_EPOLL_PWAIT, unix.SYS_RESTART_SYSCALL, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
	unix.SYS_SET_ROBUST_LIST, unix.SYS_RSEQ, // of the C library, in a test
}

// opens are the calls that return the number of a file, which later calls name.
var opens = []uint64{unix.SYS_OPENAT, unix.SYS_SOCKET, unix.SYS_IOCTL, unix.SYS_EPOLL_CREATE1, unix.SYS_EVENTFD2}

// signatures are the arguments of all calls that a plugin makes, see the page of each in section 2 of the manual.
var signatures = map[uint64][]kind{
	unix.SYS_READ:          {value, answer, value},
	unix.SYS_PREAD64:       {value, answer, value, value},
	unix.SYS_WRITE:         {value, sized, value},
	unix.SYS_PWRITE64:      {value, sized, value, value},
	unix.SYS_OPENAT:        {value, text, value, value},
	unix.SYS_CLOSE:         {value},
	unix.SYS_FSTAT:         {value, answer},
	fstatat:                {value, text, answer, value},
	unix.SYS_STATFS:        {text, answer},
	unix.SYS_FSTATFS:       {value, answer},
	unix.SYS_GETDENTS64:    {value, answer, value},
	unix.SYS_READLINKAT:    {value, text, answer, value},
	unix.SYS_MKDIRAT:       {value, text, value},
	unix.SYS_UNLINKAT:      {value, text, value},
	unix.SYS_RENAMEAT:      {value, text, value, text},
	unix.SYS_RENAMEAT2:     {value, text, value, text, value},
	unix.SYS_UTIMENSAT:     {value, text, 32, value}, // two of struct timespec
	unix.SYS_FLOCK:         {value, value},
	unix.SYS_FSYNC:         {value},
	unix.SYS_FCNTL:         {value, value, value},
	unix.SYS_EPOLL_CREATE1: {value},
	unix.SYS_EVENTFD2:      {value, value},
	unix.SYS_EPOLL_CTL:     {value, value, value, epollEvent},
	unix.SYS_CLOCK_GETTIME: {value, answer},
	unix.SYS_SETNS:         {value, value},
	unix.SYS_SOCKET:        {value, value, value},
	unix.SYS_IOCTL:         {value, value, value}, // SIOCGSKNS
	unix.SYS_CONNECT:       {value, sized, value},
	unix.SYS_SETSOCKOPT:    {value, value, value, sized, value},
	unix.SYS_GETSOCKNAME:   {value, answer, 4},
	unix.SYS_BPF:           {value, sized, value},
}
