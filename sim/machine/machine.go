// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package machine makes a simulated instance look like a real machine. Like a real machine, the instance has its own
// mounts, processes, host name and cgroups. So programs that look at the whole machine see only this instance.
//
// The package needs root and cgroup v2. A machine has its own /proc, /sys and /run. The caller names further
// directories that only this machine has. The machine shares all other files with the real machine. After a reboot,
// /run is empty, but the directories that the caller named still have their files.
package machine

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// initScript is the shell script of process 1.
//
//go:embed machine.sh
var initScript string

// cgroupRoot is the directory of the machines' cgroups.
const cgroupRoot = "/sys/fs/cgroup"

// A Machine is an instance that has been booted.
type Machine struct {
	*vpcsim.Instance
	Name string

	ownDirs []string // the machine's own directories
	diskDir string   // the directory with the files of ownDirs
	env     []string
	init    *exec.Cmd
	stdin   io.Closer // ends process 1
	group   *os.File  // the cgroup of the machine's programs

	running sync.WaitGroup // the goroutines that Keep and Watch started
	endBoot context.CancelFunc
	bootCtx context.Context // ends with this boot
}

// Boot boots an instance for the first time. ownDirs has the paths of the machine's own directories, which are empty at
// first. The machine's programs get the environment variables of this process, of the instance, and of env.
func Boot(i *vpcsim.Instance, name string, env []string, ownDirs ...string) (*Machine, error) {
	disk, err := os.MkdirTemp("/run", "disk-"+name)
	if err != nil {
		return nil, err
	}
	m := &Machine{Instance: i, Name: name, env: env, ownDirs: ownDirs, diskDir: disk}
	if err = m.mountOwnDirs(); err == nil {
		err = m.boot()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("boot %s: %w", name, err), m.Close())
	}
	return m, nil
}

// mountOwnDirs mounts a tmpfs for each of the machine's own directories. kubelet measures the free space of each
// device, so each directory needs a device of its own. A container runtime also needs a file system that can hold the
// writable layer of an overlayfs: a tmpfs can, but an overlayfs cannot.
func (m *Machine) mountOwnDirs() error {
	for _, dir := range m.ownDirs {
		at := filepath.Join(m.diskDir, dir)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := syscall.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
			return &fs.PathError{Op: "mount", Path: at, Err: err}
		}
	}
	return nil
}

func (m *Machine) removeOwnDirs() error {
	for _, dir := range m.ownDirs {
		_ = syscall.Unmount(filepath.Join(m.diskDir, dir), syscall.MNT_DETACH) // perhaps it is not mounted
	}
	return os.RemoveAll(m.diskDir)
}

// Reboot ends all processes, without a warning, and boots the machine again. The ENIs stay attached, and the machine's
// own directories keep their files. [vpcsim.Instance.Reboot] resets the network. The programs of earlier calls of
// [Machine.Keep] and [Machine.Watch] do not start again.
func (m *Machine) Reboot() error {
	err := errors.Join(m.Off(), m.Instance.Reboot())
	if err == nil {
		err = m.boot()
	}
	if err != nil {
		return fmt.Errorf("reboot %s: %w", m.Name, err)
	}
	return nil
}

func (m *Machine) boot() error {
	if err := delegateControllers(); err != nil {
		return err
	}
	group := filepath.Join(cgroupRoot, m.Name)
	err := os.MkdirAll(filepath.Join(group, "init"), 0o755)
	if err != nil {
		return err
	}
	if m.group, err = os.Open(filepath.Join(group, "init")); err != nil {
		return err
	}
	m.bootCtx, m.endBoot = context.WithCancel(context.Background())
	return m.startInit(group)
}

// startInit starts process 1 and waits until it is ready. The process first moves to the machine's cgroup. Then
// unshare(1) makes a cgroup namespace, and the machine's cgroup becomes the root of this namespace. clone(2) would make
// the namespace too early, in the parent's cgroup.
func (m *Machine) startInit(group string) error {
	enter := `echo 0 >"$1/cgroup.procs"; exec unshare --cgroup sh -c 'echo 0 >"$1/init/cgroup.procs"; shift; ` +
		`script=$1; shift; exec sh -c "$script" machine "$@"' sh "$@"`
	args := []string{"-ec", enter, "sh", group, initScript, m.Name, m.diskDir}
	m.init = exec.Command("sh", append(args, m.ownDirs...)...)
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
	}
	var stderr strings.Builder
	m.init.Stderr = &stderr
	stdin, err := m.init.StdinPipe()
	if err != nil {
		return err
	}
	m.stdin = stdin
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.Do(m.init.Start); err != nil {
		m.init = nil
		return err
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		m.init.Wait() // process 1 has failed: the error below has its messages
		m.init = nil
		return fmt.Errorf("process 1: %s: %s", line, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// delegateControllers enables all controllers of the root cgroup in the machines' cgroups. Among the cgroups that
// contain processes, only the root cgroup can enable controllers for the cgroups below it (cgroups(7)).
func delegateControllers() error {
	all, err := os.ReadFile(filepath.Join(cgroupRoot, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(all)) {
		if err := os.WriteFile(filepath.Join(cgroupRoot, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			return err
		}
	}
	return nil
}

// Command is like exec.CommandContext, but the program runs in the namespaces and in the cgroup of the machine. The
// returned command is nsenter(1), which starts the program. If the caller kills nsenter, the program continues: use
// [Machine.Signal] to end the program.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(m.init.Process.Pid), "--mount", "--uts", "--ipc", "--net", "--pid",
		"--cgroup", "--", name}
	c := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	c.Env = append(os.Environ(), m.Environ()...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(m.group.Fd())}
	c.WaitDelay = 10 * time.Second // after a kill, the program still has the pipes open: do not wait for its end
	return c
}

// Environ returns the environment of the machine's programs. It omits the variable for the plugins' state directory:
// the plugins then use their default below /run, and each machine has its own /run.
func (m *Machine) Environ() []string {
	env := append([]string{"HOME=/root"}, m.env...)
	for _, e := range m.Env() {
		if !strings.HasPrefix(e, "CNI_IPVLAN_VPC_STATE_DIR=") {
			env = append(env, e)
		}
	}
	return env
}

// Run runs a program on the machine and returns its standard output. An error contains the program's output.
func (m *Machine) Run(ctx context.Context, name string, args ...string) (string, error) {
	return Output(m.Name, m.Command(ctx, name, args...))
}

// Output runs a command and returns its standard output. An error contains the name of the machine, and the output.
func Output(machine string, c *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s%s", machine, strings.Join(c.Args, " "), err, stderr.String(),
			stdout.String())
	}
	return stdout.String(), nil
}

// Keep starts a program, and starts it again whenever it ends, as systemd does with Restart=always. The argument "log"
// is the path of the file to which Keep appends the program's output. When the machine goes off or reboots, the program
// ends, and Keep does not start it again.
func (m *Machine) Keep(log string, name string, args ...string) error {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	ctx := m.bootCtx
	m.running.Go(func() {
		defer f.Close()
		for ctx.Err() == nil {
			c := m.Command(context.Background(), name, args...)
			c.Stdout, c.Stderr = f, f
			err := c.Run()
			fmt.Fprintf(f, "machine: %s has ended: %v\n", name, err)
			select {
			case <-ctx.Done():
			case <-time.After(restartDelay):
			}
		}
	})
	return nil
}

// restartDelay is the time between the end of a program and its next start. The default of systemd is 100 ms.
const restartDelay = 300 * time.Millisecond

// Signal sends a signal to all processes of the machine that run the program. It fails if there is no such process.
func (m *Machine) Signal(signal syscall.Signal, program string) error {
	_, err := m.Run(context.Background(), "pkill", fmt.Sprintf("-%d", int(signal)), "-x", program)
	return err
}

// File returns the path by which this process reaches a file of the machine.
func (m *Machine) File(name string) string {
	return filepath.Join("/proc", strconv.Itoa(m.init.Process.Pid), "root", name)
}

// WriteFile writes a file of the machine, and creates the directories above the file.
func (m *Machine) WriteFile(name string, content []byte, mode fs.FileMode) error {
	file := m.File(name)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, content, mode))
}

// Close ends all processes of the machine, and removes its cgroups and files. The instance remains. A second Close does
// nothing.
func (m *Machine) Close() error { return errors.Join(m.Off(), m.removeOwnDirs()) }

// Off ends all processes, without a warning, and removes the cgroups. The instance and the machine's own directories
// remain for a later Reboot. A second Off does nothing.
func (m *Machine) Off() error {
	if m.group == nil {
		return nil
	}
	m.endBoot()
	var err error
	if m.init != nil {
		err = m.endInit()
	}
	m.running.Wait()
	err = errors.Join(err, m.group.Close(), removeGroups(filepath.Join(cgroupRoot, m.Name)))
	m.group, m.init = nil, nil
	return err
}

// endInit ends process 1. The kernel then kills all other processes of the machine (pid_namespaces(7)).
func (m *Machine) endInit() error {
	err := m.stdin.Close()
	timer := time.AfterFunc(time.Minute, func() { m.init.Process.Kill() })
	defer timer.Stop()
	return errors.Join(err, m.init.Wait())
}

// removeGroups removes a cgroup and all cgroups below it. At first, a cgroup may be busy, because the kernel removes an
// ended process a little later.
func removeGroups(root string) error {
	var groups []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			groups = append(groups, path)
		}
		return err
	})
	for i := len(groups) - 1; i >= 0; i-- {
		err = errors.Join(err, removeGroup(groups[i]))
	}
	return err
}

func removeGroup(group string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := os.Remove(group)
		if err == nil || !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}
