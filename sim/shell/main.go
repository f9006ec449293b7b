// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command sim is a shell on a simulated EC2 instance, for learning. The plugins are installed. A simulated EC2 and its
// metadata service answer, and a simulated VPC moves the packets.
//
// Without arguments it starts bash: interactive on a terminal or with -i, otherwise for the script on standard input.
// With arguments it runs that command. It returns the exit status of the command or script. On the instance,
//
//   - /opt/cni/bin has the plugins, /etc/cni/net.d the shipped conflist, /etc/systemd our units, and cni-tool and
//     cnitool are on the path;
//   - pod adds and deletes pods, and prints the two commands that it uses;
//   - mounts, processes, /run, /sys and /var/lib/cni are its own, so what looks at the whole node finds this instance
//     alone;
//   - /run/cni-ipvlan-vpc-k8s is the plugins' state, and empty at first;
//   - systemd does not run: cni-gc.timer is enabled, but starts nothing;
//   - node2 is another node with the pod web, host is an instance without pods in the same VPC, and peer is one in a
//     peered VPC. Their names are in /etc/hosts. Each answers ping. On TCP port 8080, each answers with the caller's
//     address.
//
// It mounts over /opt, /etc and /usr/local, so it needs a mount namespace of its own: make sim runs it in one, or in a
// VM.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

//go:embed instance.sh
var instanceScript string

func main() {
	bin := flag.String("bin", "bin", "`directory` of our programs")
	cnitool := flag.String("cnitool", ".cache/peers/cnitool",
		"`file` of the program that stands for a container runtime")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "`file` to install")
	units := flag.String("units", "systemd", "`directory` of our units")
	interactive := flag.Bool("i", false, "without arguments, bash is interactive though standard input is no terminal")
	flag.Parse()
	status, err := run(installation{*bin, *cnitool, *conflist, *units}, flag.Args(), *interactive ||
		machine.IsTerminal(os.Stdin))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(f installation, command []string, interactive bool) (status int, err error) {
	s, err := f.scene()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := f.install(s.Hosts()); err != nil {
		return 1, err
	}
	switch {
	case len(command) > 0:
	case interactive:
		fmt.Print(greeting)
		// a mistyped last command is no failure of make sim
		_, err := shell(s.Nodes[0].Instance, []string{"bash", "--norc", "-i"})
		return 0, err
	default:
		command = []string{"bash", "--norc"}
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

// shell runs a command on the instance, with this terminal. The command and its process 1 have namespaces of their own,
// which end with process 1, and everything in them.
func shell(node *vpcsim.Instance, command []string) (status int, err error) {
	c := exec.Command("sh", append([]string{"-c", instanceScript, "instance"}, command...)...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	c.Dir = "/root"
	c.Env = append(append(os.Environ(), node.Env()...), "CNI_IPVLAN_VPC_STATE_DIR=/run/cni-ipvlan-vpc-k8s",
		"PS1=node1# ", "HOME=/root",
		"PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "CNI_PATH="+binDir, "NETCONFPATH="+confDir)
	return machine.Attach(c, func(c *exec.Cmd) error { return node.Do(c.Run) })
}
