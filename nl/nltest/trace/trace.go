// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package trace executes a program, and follows its system calls by ptrace(2). At the
// call that a test asks for, it kills the program, or has the call fail.
//
// strace could do that at the n-th call, but it counts for each thread by itself. And a goroutine runs on a different
// thread every time. Here the calls of all threads are one sequence.
//
// A trace can also stop the program at a call while others do something: [Trace.Meets].
//
// A trace does not know the program's purpose: a test says which calls count.
package trace

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// A Trace is one execution of a program.
type Trace struct {
	Counts func(Call) string // what a call is called, if it counts; "": it does not
	Every  bool              // those count too that every program makes often and that change nothing: slow
	Kill   int               // the call at which the program is killed, from 1, of those that count; 0: none
	After  bool              // it is killed when the call has been carried out, and not before
	// if it is not nil, the program is not killed: it waits at the call until this has ended, and goes on
	Meets func()
	Errno syscall.Errno // if it is not 0, the program goes on, but the call is not carried out, and fails so

	Seen []string // the calls that count and were begun, in order

	pid    int
	killed bool
	met    bool
	failed error        // to have a call fail
	begun  map[int]bool // the threads that have been seen
	at     map[int]int  // the call that a thread is in, from 1; 0: one that does not count
}

// Run executes the command in the calling thread's namespaces, and returns how it has
// ended. Of the command it takes the path, the arguments, the environment, and what is
// read and written.
func (t *Trace) Run(cmd *exec.Cmd) (status syscall.WaitStatus, err error) {
	runtime.LockOSThread() // a thread traces, not a process
	defer runtime.UnlockOSThread()
	stdin, stdout, err := stdio(cmd)
	if err != nil {
		return 0, err
	}
	defer stdin.Close()
	defer stdout.Close()
	if err := t.start(cmd, stdin, stdout); err != nil {
		return 0, err
	}
	status, err = t.follow()
	t.killed = status.Signaled()
	if cmd.Stdout != nil {
		stdout.Seek(0, 0)
		stdout.WriteTo(cmd.Stdout)
	}
	return status, errors.Join(err, t.failed)
}

// start begins the program, and has it stop at its first system call.
func (t *Trace) start(cmd *exec.Cmd, stdin, stdout *os.File) (err error) {
	env := cmd.Env
	if !t.Every {
		env = append(slices.Clone(env), filtered+"=1")
	}
	t.pid, err = syscall.ForkExec(cmd.Path, cmd.Args, &syscall.ProcAttr{
		Env: env, Files: []uintptr{stdin.Fd(), stdout.Fd(), stdout.Fd()},
		// A group of its own, so that waiting for it leaves the children of others alone.
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return err
	}
	t.begun, t.at = map[int]bool{t.pid: true}, map[int]int{}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(t.pid, &status, 0, nil); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESECCOMP |
		unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return err
	}
	return t.resume(t.pid, 0)
}

// resume has a thread go on to the next call, or to the end of the one that it is in.
func (t *Trace) resume(tid, signal int) error {
	if t.Every || t.After && t.Kill > 0 && t.at[tid] == t.Kill {
		return syscall.PtraceSyscall(tid, signal)
	}
	return syscall.PtraceCont(tid, signal)
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
func (t *Trace) follow() (syscall.WaitStatus, error) {
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
		if err := t.resume(tid, t.stopped(tid, status)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("continue %d: %w", tid, err)
		}
	}
}

// stopped looks at why a thread has stopped, and returns the signal with which it is to go on.
func (t *Trace) stopped(tid int, status syscall.WaitStatus) (signal int) {
	const sysgood = 0x80
	switch sig := status.StopSignal(); {
	case sig == syscall.SIGTRAP|sysgood, status.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		t.call(tid)
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

// call counts the system call that a thread begins, and acts at the beginning or the
// end of the one that was asked for.
func (t *Trace) call(tid int) {
	c, op := read(tid)
	if op == entry || op == filter {
		t.at[tid] = 0
		if what := t.Counts(c); what != "" {
			t.Seen = append(t.Seen, what)
			t.at[tid] = len(t.Seen)
		}
	}
	switch {
	case op == 0 || t.Kill == 0 || t.at[tid] != t.Kill:
	case t.Errno != 0 && op != exit:
		t.failed = errors.Join(t.failed, fail(tid, t.Errno))
	case t.Errno != 0 || t.After != (op == exit) || t.met:
	case t.Meets != nil:
		t.met = true
		t.Meets()
	default:
		syscall.Kill(t.pid, syscall.SIGKILL)
	}
}

// Again is the same execution once more. If errno is not 0, the program is not killed at the call: the call fails with
// errno.
func (t *Trace) Again(errno syscall.Errno) *Trace {
	return &Trace{Counts: t.Counts, Every: t.Every, Kill: t.Kill, After: t.After && errno == 0, Errno: errno}
}
