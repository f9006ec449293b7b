// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package trace executes a program, and follows its system calls by ptrace(2). At the call that a test has chosen, it
// kills the program, or makes the call fail.
//
// strace can also kill a program, or make a call fail, at the n-th call. But strace counts the calls of each thread
// separately. A goroutine runs on a different thread in each run. This package counts the calls of all threads in one
// sequence.
//
// A trace can also stop the program at a call, while the test does something else: [Trace.Meets].
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
	Counts func(Call) string // returns a name for a call that counts, and "" for other calls
	Every  bool              // stop also at calls that every program makes often and that change nothing: slow
	Kill   int               // the number of the call at which the program is killed, counted from 1; 0: none
	After  bool              // the program is killed when the call has been carried out, and not before
	// if it is not nil, the program is not killed: it waits at the call until Meets has returned, and goes on
	Meets func()
	Errno syscall.Errno // if it is not 0, the program is not killed: the call is not carried out, and fails with Errno

	Seen []string // the calls that count and were begun, in order

	pid    int
	killed bool
	met    bool
	failed error        // the error if a call could not be made to fail
	begun  map[int]bool // the threads that have been seen
	at     map[int]int  // the number of the call that a thread is in, from 1; 0: a call that does not count
}

// Run executes the command in the calling thread's namespaces, and returns how the command has ended. Of cmd, it uses
// only Path, Args, Env, Stdin and Stdout. The program writes both stdout and stderr to cmd.Stdout.
func (t *Trace) Run(cmd *exec.Cmd) (status syscall.WaitStatus, err error) {
	runtime.LockOSThread() // ptrace(2) belongs to a thread, not to a process
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

// start starts the program, which stops before its first instruction. Then start lets the program run to its first
// call.
func (t *Trace) start(cmd *exec.Cmd, stdin, stdout *os.File) (err error) {
	env := cmd.Env
	if !t.Every {
		env = append(slices.Clone(env), filtered+"=1")
	}
	t.pid, err = syscall.ForkExec(cmd.Path, cmd.Args, &syscall.ProcAttr{
		Env: env, Files: []uintptr{stdin.Fd(), stdout.Fd(), stdout.Fd()},
		// The program gets a process group of its own. So follow waits only for the threads of the program, and for no
		// other child.
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

// resume lets a thread run to its next call, or to the end of the call that it is in.
func (t *Trace) resume(tid, signal int) error {
	if t.Every || t.After && t.Kill > 0 && t.at[tid] == t.Kill {
		return syscall.PtraceSyscall(tid, signal)
	}
	return syscall.PtraceCont(tid, signal)
}

// stdio returns a file with the input of a command, and a file for its output.
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

// follow waits until a thread stops, and lets the thread run again, until the process ends.
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

// stopped finds out why a thread has stopped, and returns the signal that the thread gets when it runs again.
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

// call counts the system call that a thread begins. At the system call with the number t.Kill, the method call kills
// the program, calls Meets, or makes the system call fail with Errno. The method does so at the beginning or the end of
// the system call.
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

// Again returns a trace for the same execution once more. If errno is not 0, the program is not killed at the call: the
// call fails with errno.
func (t *Trace) Again(errno syscall.Errno) *Trace {
	return &Trace{Counts: t.Counts, Every: t.Every, Kill: t.Kill, After: t.After && errno == 0, Errno: errno}
}
