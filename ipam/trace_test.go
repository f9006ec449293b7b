// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A trace executes a program and follows its system calls by ptrace(2). strace could
// kill it at the n-th of them, but counts for each thread by itself, and which thread a
// goroutine runs on is different every time.
type trace struct {
	dir string // system calls on files in here count
	n   int    // the one at which the program is killed, from 1; 0: none

	seen  []string // those that were begun, in order
	pid   int
	begun map[int]bool // the threads that have been seen
}

// run executes the command in the calling thread's namespace. It must be called on a
// locked thread, because a thread traces, not a process.
func (t *trace) run(cmd *exec.Cmd) (status syscall.WaitStatus, err error) {
	stdin, stdout, err := stdio(cmd)
	if err != nil {
		return 0, err
	}
	defer stdin.Close()
	defer stdout.Close()
	t.pid, err = syscall.ForkExec(cmd.Path, cmd.Args, &syscall.ProcAttr{
		Env: cmd.Env, Files: []uintptr{stdin.Fd(), stdout.Fd(), stdout.Fd()},
		// A group of its own, so that waiting for it leaves the children of others alone.
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return 0, err
	}
	t.begun = map[int]bool{t.pid: true}
	if _, err := syscall.Wait4(t.pid, &status, 0, nil); err != nil {
		return 0, err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return 0, err
	}
	if err := syscall.PtraceSyscall(t.pid, 0); err != nil {
		return 0, err
	}
	status, err = t.follow()
	stdout.Seek(0, 0)
	stdout.WriteTo(cmd.Stdout)
	return status, err
}

// stdio are files for what a command reads and writes.
func stdio(cmd *exec.Cmd) (stdin, stdout *os.File, err error) {
	if stdin, err = os.CreateTemp("", "stdin"); err != nil {
		return nil, nil, err
	}
	os.Remove(stdin.Name())
	if cmd.Stdin != nil {
		if _, err := stdin.ReadFrom(cmd.Stdin); err != nil {
			return nil, nil, err
		}
		stdin.Seek(0, 0)
	}
	if stdout, err = os.CreateTemp("", "stdout"); err != nil {
		return nil, nil, err
	}
	return stdin, stdout, os.Remove(stdout.Name())
}

// follow waits for the threads to stop, and has them go on, until the process ends.
func (t *trace) follow() (syscall.WaitStatus, error) {
	for {
		var status syscall.WaitStatus
		tid, err := syscall.Wait4(-t.pid, &status, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for %d: %w", t.pid, err)
		case status.Exited() || status.Signaled():
			if tid == t.pid {
				return status, nil
			}
			continue
		}
		if err := syscall.PtraceSyscall(tid, t.stopped(tid, status)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("continue %d: %w", tid, err)
		}
	}
}

// stopped looks at why a thread has stopped, and returns the signal with which it is to go on.
func (t *trace) stopped(tid int, status syscall.WaitStatus) (signal int) {
	const sysgood = 0x80
	switch sig := status.StopSignal(); {
	case sig == syscall.SIGTRAP|sysgood:
		if what := t.call(tid); what != "" {
			t.seen = append(t.seen, what)
			if len(t.seen) == t.n {
				syscall.Kill(t.pid, syscall.SIGKILL) // before it is carried out
			}
		}
		return 0
	case sig == syscall.SIGTRAP:
		return 0 // a thread was made
	case sig == syscall.SIGSTOP && !t.begun[tid]:
		t.begun[tid] = true
		return 0 // a thread begins
	default:
		return int(sig)
	}
}

// syscallInfo is struct ptrace_syscall_info, at a system call's entry.
type syscallInfo struct {
	Op     uint8
	_      [3]uint8
	Arch   uint32
	IP, SP uint64
	Nr     uint64
	Args   [6]uint64
}

// fileCalls are the system calls by which the state on disk, or who has a lock, changes:
// their names, and which of the arguments is a path; -1: the first one is a descriptor.
var fileCalls = map[uint64]struct {
	name string
	path int
}{
	unix.SYS_OPENAT:    {"openat", 1},
	unix.SYS_MKDIRAT:   {"mkdirat", 1},
	unix.SYS_UNLINKAT:  {"unlinkat", 1},
	unix.SYS_RENAMEAT:  {"renameat", 1},
	unix.SYS_WRITE:     {"write", -1},
	unix.SYS_FSYNC:     {"fsync", -1},
	unix.SYS_FTRUNCATE: {"ftruncate", -1},
	unix.SYS_FLOCK:     {"flock", -1},
	unix.SYS_CLOSE:     {"close", -1},
}

// call names the system call that a thread begins, if it is about a file of the folder.
func (t *trace) call(tid int) string {
	const entry = 1
	var info syscallInfo
	_, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, unix.PTRACE_GET_SYSCALL_INFO, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	call, ok := fileCalls[info.Nr]
	if errno != 0 || info.Op != entry || !ok {
		return ""
	}
	var path string
	if call.path < 0 {
		path, _ = os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, info.Args[0]))
	} else {
		path = text(tid, uintptr(info.Args[call.path]))
	}
	if path != t.dir && !strings.HasPrefix(path, t.dir+"/") {
		return ""
	}
	if call.name == "close" && !strings.HasSuffix(path, ".lock") {
		return "" // only of a lock is that a change
	}
	return call.name + " " + filepath.Base(path)
}

// text is the string at an address of a thread's memory.
func text(tid int, addr uintptr) string {
	var b [unix.PathMax]byte
	n, _ := syscall.PtracePeekData(tid, addr, b[:256])
	s, _, _ := strings.Cut(string(b[:n]), "\x00")
	return s
}
