// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command sim is a place to play: a shell on a simulated EC2 instance, with the plugins installed where they belong, a
// simulated EC2 and its metadata service behind them, and a VPC around it that moves packets.
//
// Without arguments it starts bash; with some, that command, and its exit status is the command's. On the instance,
//
//   - /opt/cni/bin has the plugins, /etc/cni/net.d the shipped conflist, and cni-tool and cnitool are on the path;
//   - pod adds and ends pods, in the two commands that it shows;
//   - /run/cni-ipvlan-vpc-k8s is where the plugins keep what they know, and empty at first;
//   - node2 is another node, with the pod web, host an instance without pods in the same VPC, and peer one in a peered
//     VPC: /etc/hosts has their names. Each answers ping, and on TCP port 8080 with the address of who asks.
//
// It mounts over /opt, /etc and /run, so it wants a mount namespace of its own: make sim runs it in one, or in a VM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/paths"
)

func main() {
	bin := flag.String("bin", "bin", "`folder` of our programs")
	cnitool := flag.String("cnitool", ".cache/peers/cnitool", "`file` of the program that stands for a container runtime")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "`file` to install")
	flag.Parse()
	status, err := run(furniture{*bin, *cnitool, *conflist}, flag.Args())
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
	s, err := f.scene()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := f.install(s.Hosts()); err != nil {
		return 1, err
	}
	if len(command) == 0 {
		fmt.Print(greeting)
		_, err := shell(s.Nodes[0].Instance, []string{"bash", "--norc", "-i"}) // its status is that of what was typed last
		return 0, err
	}
	return shell(s.Nodes[0].Instance, command)
}

// scene is what is around the shell, and the instance that it is on: the first of the nodes. The other has a pod.
func (f furniture) scene() (*paths.Scene, error) {
	list, err := os.ReadFile(f.conflist)
	if err != nil {
		return nil, err
	}
	s, err := paths.New(paths.Options{Bin: f.bin, Conflist: list, Families: []paths.Family{paths.IPv4}})
	if err != nil {
		return nil, err
	}
	other := s.Nodes[1]
	web, err := other.Add(context.Background(), "default", "web")
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	other.Pods = append(other.Pods, web)
	return s, nil
}

// shell runs a command on the instance, with this terminal.
func shell(node *vpcsim.Instance, command []string) (status int, err error) {
	c := exec.Command(command[0], command[1:]...)
	c.Dir = "/root"
	c.Env = append(append(os.Environ(), node.Env()...), "CNI_IPVLAN_VPC_STATE_DIR=/run/cni-ipvlan-vpc-k8s", "PS1=node1# ", "HOME=/root",
		"PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "CNI_PATH="+binDir, "NETCONFPATH="+confDir)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = node.Do(c.Run)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	return 0, err
}
