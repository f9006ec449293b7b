// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command sim is a shell on a simulated EC2 instance, for learning. The plugins are installed. A simulated EC2 and its
// metadata service answer, and a simulated VPC moves the packets.
//
// Without arguments it starts bash. With arguments it runs that command, and returns the command's exit status. On the
// instance,
//
//   - /opt/cni/bin has the plugins, /etc/cni/net.d the shipped conflist, and cni-tool and cnitool are on the path;
//   - pod adds and deletes pods, and prints the two commands that it uses;
//   - /run/cni-ipvlan-vpc-k8s is the plugins' state, and empty at first;
//   - node2 is another node with the pod web, host is an instance without pods in the same VPC, and peer is one in a
//     peered VPC. Their names are in /etc/hosts. Each answers ping. On TCP port 8080, each answers with the caller's
//     address.
//
// It mounts over /opt, /etc and /run, so it needs a mount namespace of its own: make sim runs it in one, or in a VM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/vpcsim"
)

func main() {
	bin := flag.String("bin", "bin", "`directory` of our programs")
	cnitool := flag.String("cnitool", ".cache/peers/cnitool", "`file` of the program that stands for a container runtime")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "`file` to install")
	flag.Parse()
	status, err := run(installation{*bin, *cnitool, *conflist}, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(f installation, command []string) (status int, err error) {
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
		_, err := shell(s.Nodes[0].Instance, []string{"bash", "--norc", "-i"}) // its status is that of the last command
		return 0, err
	}
	return shell(s.Nodes[0].Instance, command)
}

// scene is the network around the shell, and the instance of the shell: the first node. The other node has a pod.
func (f installation) scene() (*paths.Scene, error) {
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
