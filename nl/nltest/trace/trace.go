// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package trace executes a program, and observes the program's system calls with ptrace(2). A test chooses one of these
// calls, and what happens at the call. The program is killed, or the call fails, or the program waits at the call while
// a function of the test runs.
//
// strace(1) can also kill a program at a call, or make a call fail. But strace counts the calls of each thread
// separately, and a goroutine may run on a different thread in each run.
//
// The package does not know which of a program's calls are important for a test. So the test passes a function that
// selects the calls to count: see [Trace.Counts].
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

// A Trace is one execution of a program. Before Run, set the exported fields. Do not set Seen: Run sets it.
type Trace struct {
	Counts func(Call) string // returns a name for a call that Run must count, and "" for any other call
	Every  bool              // also stop at the calls in the variable harmless; this is slow
	Kill   int               // kill the program at the call with this number, counted from 1; 0: do not kill it
	After  bool              // kill the program after the call, and not before it
	// If Meets is not nil, Run calls it at the system call with the number Kill, instead of killing the program. The
	// program waits until Meets returns.
	Meets func()
	Errno syscall.Errno // if not 0, the call with the number Kill fails with Errno, and Run does not kill the program

	Seen []string // the names of the calls that count, in the order in which they began

	pid          int
	killed       bool
	met          bool
	failed       error        // the error of failCall
	knownThreads map[int]bool // the threads that have stopped at least once
	currentCall  map[int]int  // maps a thread to the number of its present call; 0: the call does not count
}

// Run executes the program in the namespaces of the calling thread, and returns its wait status. It uses only the
// fields Path, Args, Env, Stdin and Stdout of cmd. The program's stderr also goes to cmd.Stdout.
func (t *Trace) Run(cmd *exec.Cmd) (status syscall.WaitStatus, err error) {
	runtime.LockOSThread() // only the thread that started the program may call ptrace(2) for it
	defer runtime.UnlockOSThread()
	stdin, stdout, err := stdio(cmd)
	if err != nil {
		return 0, err
	}
	defer stdin.Close()
	defer stdout.Close()
	if err := t.startProgram(cmd, stdin, stdout); err != nil {
		return 0, err
	}
	status, err = t.followThreads()
	t.killed = status.Signaled()
	if cmd.Stdout != nil {
		stdout.Seek(0, 0)
		stdout.WriteTo(cmd.Stdout)
	}
	return status, errors.Join(err, t.failed)
}

// startProgram starts the program, and lets it run to its first system call.
func (t *Trace) startProgram(cmd *exec.Cmd, stdin, stdout *os.File) (err error) {
	env := cmd.Env
	if !t.Every {
		env = append(slices.Clone(env), filterEnv+"=1")
	}
	t.pid, err = syscall.ForkExec(cmd.Path, cmd.Args, &syscall.ProcAttr{
		Env: env, Files: []uintptr{stdin.Fd(), stdout.Fd(), stdout.Fd()},
		// The program gets a process group of its own, so that followThreads waits for no other child.
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true},
	})
	if err != nil {
		return err
	}
	t.knownThreads, t.currentCall = map[int]bool{t.pid: true}, map[int]int{}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(t.pid, &status, 0, nil); err != nil {
		return err
	}
	const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESECCOMP |
		unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return err
	}
	return t.resumeThread(t.pid, 0)
}

// resumeThread lets a thread run until it stops again: at its next call, or at the end of the call that it is in.
func (t *Trace) resumeThread(tid, signal int) error {
	if t.Every || t.After && t.Kill > 0 && t.currentCall[tid] == t.Kill {
		return syscall.PtraceSyscall(tid, signal)
	}
	return syscall.PtraceCont(tid, signal)
}

// stdio returns a file with the content of cmd.Stdin, and a file for the output.
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

// followThreads handles each stop of a thread and resumes the thread, until the program ends. It returns the wait
// status of the program.
func (t *Trace) followThreads() (syscall.WaitStatus, error) {
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
		if err := t.resumeThread(tid, t.handleStop(tid, status)); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("continue %d: %w", tid, err)
		}
	}
}

// handleStop handles a stop of a thread, and returns the signal to deliver to the thread, or 0.
func (t *Trace) handleStop(tid int, status syscall.WaitStatus) (signal int) {
	const sysgood = 0x80
	switch sig := status.StopSignal(); {
	case sig == syscall.SIGTRAP|sysgood, status.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		t.handleCall(tid)
		return 0
	case sig == syscall.SIGTRAP:
		return 0 // a thread was made
	case sig == syscall.SIGSTOP && !t.knownThreads[tid]:
		t.knownThreads[tid] = true
		return 0 // a thread begins
	default:
		return int(sig)
	}
}

// handleCall handles a stop of a thread at the beginning or the end of a system call. At the beginning, it counts the
// call. At the call with the number t.Kill, it kills the program, calls Meets, or makes the call fail with Errno.
func (t *Trace) handleCall(tid int) {
	c, op := readCall(tid)
	if op == entry || op == filter {
		t.currentCall[tid] = 0
		if what := t.Counts(c); what != "" {
			t.Seen = append(t.Seen, what)
			t.currentCall[tid] = len(t.Seen)
		}
	}
	switch {
	case op == 0 || t.Kill == 0 || t.currentCall[tid] != t.Kill:
	case t.Errno != 0 && op != exit:
		t.failed = errors.Join(t.failed, failCall(tid, t.Errno))
	case t.Errno != 0 || t.After != (op == exit) || t.met:
	case t.Meets != nil:
		t.met = true
		t.Meets()
	default:
		syscall.Kill(t.pid, syscall.SIGKILL)
	}
}

// Again makes a Trace for another run of the program, with the same number Kill. If errno is 0, the new Trace kills the
// program at the call with this number. Otherwise, it makes this call fail with errno.
func (t *Trace) Again(errno syscall.Errno) *Trace {
	return &Trace{Counts: t.Counts, Every: t.Every, Kill: t.Kill, After: t.After && errno == 0, Errno: errno}
}
