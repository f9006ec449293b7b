// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

//go:embed instance.sh
var instanceScript string

// commandOn returns a command for an instance. The command runs in a new mount namespace and a new PID namespace, under
// a process 1 of its own.
func commandOn(node *vpcsim.Instance, command []string) *exec.Cmd {
	c := exec.Command("sh", append([]string{"-c", instanceScript, "instance"}, command...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	c.Dir, c.Env = "/root", environment(node)
	return c
}

func environment(node *vpcsim.Instance) []string {
	return append(append(os.Environ(), node.Env()...), "CNI_IPVLAN_VPC_STATE_DIR=/run/cni-ipvlan-vpc-k8s",
		"PS1="+node.Name+"# ", "HOME=/root", "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
		"CNI_PATH="+binDir, "NETCONFPATH="+confDir)
}

func runShell(node *vpcsim.Instance, command []string) (status int, err error) {
	return machine.Attach(commandOn(node, command), func(c *exec.Cmd) error { return node.Do(c.Run) })
}

// An instance is a node with its own process 1.
type instance struct {
	node  *vpcsim.Instance
	init  *exec.Cmd
	stdin io.Closer // ends process 1
}

func bootNode(node *vpcsim.Instance) (*instance, error) {
	i := &instance{node: node, init: commandOn(node, []string{"sh", "-c", "echo ready; exec cat"})}
	var err error
	i.stdin, err = i.init.StdinPipe()
	out, e := i.init.StdoutPipe()
	if err = errors.Join(err, e); err == nil {
		err = node.Do(i.init.Start)
	}
	if err != nil {
		return nil, err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("process 1 of %s: %q: %w", node.Name, line, err), i.close())
	}
	return i, nil
}

func (i *instance) command(args []string) *exec.Cmd {
	c := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(i.init.Process.Pid), "--mount", "--pid",
		"--net", "--"}, args...)...)
	c.Env = environment(i.node)
	return c
}

// close ends all processes of the instance.
func (i *instance) close() error { return errors.Join(i.stdin.Close(), i.init.Wait()) }
