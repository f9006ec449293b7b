// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command sim is a place to play: a shell on a simulated EC2 instance, with the plugins installed where they belong, a
// simulated EC2 and its metadata service behind them, and a VPC around it that moves packets.
//
// Without arguments it starts bash; with some, that command, and its exit status is the command's. On the instance,
//
//   - /opt/cni/bin has the plugins, /etc/cni/net.d the shipped conflist, and cni-tool and cnitool are on the path;
//   - /run/cni-ipvlan-vpc-k8s is where the plugins keep what they know, and empty at first;
//   - node2 is another node, host an instance without pods in the same VPC, and peer one in a peered VPC: /etc/hosts
//     has their names. Each answers ping, and on TCP port 8080 with the address of who asks.
//
// It mounts over /opt, /etc and /run, so it wants a mount namespace of its own: make sim runs it in one, or in a VM.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
)

func main() {
	bin := flag.String("bin", "bin", "`folder` of our programs")
	cnitool := flag.String("cnitool", ".cache/peers/cnitool", "`file` of the program that stands for a container runtime")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "`file` to install")
	flag.Parse()
	command := flag.Args()
	if len(command) == 0 {
		command = []string{"bash", "--norc", "-i"}
	}
	status, err := run(furniture{*bin, *cnitool, *conflist}, command)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(f furniture, command []string) (status int, err error) {
	if err := shareNetNS(); err != nil {
		return 1, err
	}
	w, err := newWorld()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if err := f.install(w.hosts); err != nil {
		return 1, err
	}
	return w.shell(command)
}

// shell runs a command on the instance, with this terminal.
func (w *world) shell(command []string) (status int, err error) {
	c := exec.Command(command[0], command[1:]...)
	c.Dir = "/root"
	c.Env = append(append(os.Environ(), w.node.Env()...), "CNI_IPVLAN_VPC_STATE_DIR=/run/cni-ipvlan-vpc-k8s", "PS1=node1# ", "HOME=/root",
		"PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "CNI_PATH="+binDir, "NETCONFPATH="+confDir)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = w.node.Do(c.Run)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}
