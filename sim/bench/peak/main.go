// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command peak measures the memory of a CNI plugin. A symbolic link with the name of the plugin points to peak. peak
// finds the plugin in the directories of $PEAK_PATH, and executes it. To the file $PEAK_OUT, it appends a line with the
// plugin's name, its highest resident set in KiB, and its highest anonymous memory in KiB.
//
// peak traces the plugin, and reads /proc each time a thread of the plugin exits. The highest resident set that
// wait4(2) returns is useless here, because it includes memory of peak. The child shares the memory of peak until it
// executes the plugin.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

func main() {
	// All calls of ptrace(2) must come from the thread that has started the program.
	runtime.LockOSThread()
	status, err := run(filepath.Base(os.Args[0]))
	if err != nil {
		fmt.Fprintln(os.Stderr, "peak:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

// run executes a plugin, and returns its exit status.
func run(name string) (status int, err error) {
	program, err := findPlugin(name)
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(program, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	m, status, err := trace(cmd.Process.Pid)
	if err != nil {
		return 0, err
	}
	return status, m.writeFigures(name)
}

func findPlugin(name string) (string, error) {
	for _, dir := range filepath.SplitList(os.Getenv("PEAK_PATH")) {
		program := filepath.Join(dir, name)
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
	}
	return "", fmt.Errorf("%s is not in $PEAK_PATH", name)
}

// A memory is the memory of a process, in KiB.
type memory struct{ peak, anonymous int }

// writeFigures appends the figures of a process to $PEAK_OUT, with a single write(2), because several processes append.
func (m memory) writeFigures(name string) error {
	f, err := os.OpenFile(os.Getenv("PEAK_OUT"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, name, m.peak, m.anonymous)
	return errors.Join(err, f.Close())
}

// trace follows the threads of a process until the process ends. Each time a thread exits, trace reads the memory
// figures of the process. It returns the highest of these figures, and the exit status of the process.
func trace(pid int) (m memory, status int, err error) {
	var w syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &w, 0, nil); err != nil { // the process stops when it executes the program
		return m, 0, err
	}
	const exitKill = 0x100000
	err = syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACECLONE|syscall.PTRACE_O_TRACEEXIT|exitKill)
	if err != nil {
		return m, 0, err
	}
	for thread, signal := pid, 0; ; {
		if err := syscall.PtraceCont(thread, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return m, 0, err
		}
		if thread, err = syscall.Wait4(-1, &w, syscall.WALL, nil); err != nil {
			return m, 0, err
		}
		signal = 0
		switch {
		case w.Exited() && thread == pid:
			return m, w.ExitStatus(), nil
		case w.Signaled() && thread == pid:
			return m, 128 + int(w.Signal()), nil
		case w.TrapCause() == syscall.PTRACE_EVENT_EXIT:
			m = m.withPresent(pid)
		case w.Stopped() && w.StopSignal() != syscall.SIGTRAP && w.StopSignal() != syscall.SIGSTOP:
			signal = int(w.StopSignal())
		}
	}
}

// withPresent returns the higher of the present value and the value in m, for each figure of a process.
func (m memory) withPresent(pid int) memory {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // b is empty if the process has ended: m stays unchanged
	for line := range strings.Lines(string(b)) {
		var n int
		key, value, _ := strings.Cut(line, ":")
		if _, err := fmt.Sscan(value, &n); err != nil {
			continue
		}
		switch key {
		case "VmHWM":
			m.peak = max(m.peak, n)
		case "RssAnon":
			m.anonymous = max(m.anonymous, n)
		}
	}
	return m
}
