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

// private is an environment variable. If it is set, the test process is in namespaces of its own.
const private = "TOOL_TEST_PRIVATE"

// TestMain runs the tool, or the tests. The tool lists all addresses of the machine. So the tests run in network, PID
// and mount namespaces of their own. Without root, they also need a user namespace.
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

// enter executes this program again in new namespaces, and returns its exit status.
func enter() int {
	runtime.LockOSThread() // the kernel sends Pdeathsig when this thread ends
	// The transcripts share the namespaces, and the tool sees everything in them. So the transcripts run one after the
	// other.
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

// furnish gives the namespaces a /proc of their own processes, a /run, a loopback link, and an empty /etc/cni.
func furnish() error {
	err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("proc", "/proc", "proc", 0, ""),
		syscall.Mount("run", "/run", "tmpfs", 0, ""),
	)
	if err != nil {
		return err
	}
	// The machine may be a node in use, with a configuration in /etc/cni.
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
