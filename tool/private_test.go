// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"
)

// private, in the environment, says that the test process is in namespaces of its own.
const private = "TOOL_TEST_PRIVATE"

// TestMain is the tool, or the tests. The tool lists every address on the machine, so the tests have a machine of their
// own: a network, processes and mounts that no other process is in. Without root, they need user namespaces.
func TestMain(m *testing.M) {
	isTool := filepath.Base(os.Args[0]) == tool.Name
	switch {
	case isTool:
	case os.Getenv(private) == "":
		os.Exit(enter())
	default:
		if err := furnish(); err != nil {
			fmt.Fprintln(os.Stderr, "furnish the private namespaces:", err)
			os.Exit(1)
		}
	}
	testscript.Main(m, map[string]func(){tool.Name: tool.Main, "cni-tool": tool.Main})
}

// enter runs this process again, in new namespaces, and returns its exit status.
func enter() int {
	runtime.LockOSThread() // Pdeathsig is about the thread
	// One transcript after the other: they share the namespaces, and the tool sees all of them.
	c := exec.Command("/proc/self/exe", append(slices.Clone(os.Args[1:]), "-test.parallel=1")...)
	c.Env = append(os.Environ(), private+"=1")
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		c.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		c.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := c.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests need root, or user namespaces:", err)
		return 1
	}
	return 0
}

// furnish gives the namespaces a /proc of their processes, a /run, a loopback, and no
// configuration of CNI.
func furnish() error {
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Mount("run", "/run", "tmpfs", 0, ""),
	)
	if err != nil {
		return err
	}
	// The machine may be a node that an operator uses.
	if err := syscall.Mount("cni", "/etc/cni", "tmpfs", 0, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	host, err := nl.Node()
	if err != nil {
		return err
	}
	defer host.Close()
	return nl.Wiring{{NS: host, Object: nl.Up{Dev: "lo"}}}.Add()
}
