// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command shell launches a simulated EC2 instance, and opens a shell on it. A person can use this shell to learn how to
// use the plugins. The plugins are installed on the instance. A simulated EC2 and a simulated metadata service answer
// the plugins' requests, and a simulated VPC moves the packets.
//
// If there are arguments, the program runs them as a command on the instance, and exits with the command's status.
// Without arguments, it runs bash. If standard input is a terminal or if the flag -i is set, bash is interactive, and
// the exit status is 0. Otherwise, bash runs the script on standard input, and the exit status is the script's status.
//
// On the instance, the person finds these programs and files:
//
//   - /opt/cni/bin has the plugins, /etc/cni/net.d has the shipped conflist, /etc/systemd has our units, and $PATH has
//     cni-tool and cnitool;
//   - the command "pod" adds and deletes pods. For this, it runs and prints two commands: "ip netns" and cnitool. A pod
//     answers on TCP port 8080, and its name is in /etc/hosts;
//   - the command "call" connects to TCP port 8080 of a pod or a host. It also works inside a pod;
//   - the command "ec2" makes faults in EC2, and ends them; the command "service" makes a Service for a pod;
//   - the instance has its own mounts, processes, /run, /sys and /var/lib/cni, so programs that look at the whole node
//     see only this instance;
//   - /run/cni-ipvlan-vpc-k8s has the plugins' state, and is empty at first;
//   - systemd does not run: cni-gc.timer is enabled, but starts nothing;
//   - node2 is another node, which has the pod web. "on node2 COMMAND" runs a command on node2. host is an instance
//     without pods in the same VPC, and peer is an instance without pods in a peered VPC. /etc/hosts has the names of
//     these nodes, pods and instances. All of them answer ping. On TCP port 8080, they answer with the caller's
//     address.
//
// The program mounts overlays on /opt, /etc and /usr/local, so it needs its own mount namespace. The command "make sim"
// runs the program in a mount namespace or in a VM.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// namedPrograms has functions that run instead of the shell. A user starts such a function by a symbolic link to this
// program. The key is the name of the symbolic link.
var namedPrograms = map[string]func(args []string) int{
	"answer": answerCalls, "call": callHost, "ec2": askControl, "on": askControl, "service": askControl,
}

func main() {
	name := filepath.Base(os.Args[0])
	if program := namedPrograms[name]; program != nil {
		os.Exit(program(append([]string{name}, os.Args[1:]...)))
	}
	bin := flag.String("bin", "bin", "`directory` of our programs")
	cnitool := flag.String("cnitool", ".cache/peers/cnitool",
		"`file` of the program that stands for a container runtime")
	conflist := flag.String("conflist", "conflist-examples/10-cni-ipvlan-vpc-k8s.conflist", "`file` to install")
	dataPath := flag.String("datapath", "", "the pods' data `path`: ipvlan or veth; by default, as in the conflist")
	units := flag.String("units", "systemd", "`directory` of our units")
	interactive := flag.Bool("i", false, "run an interactive shell, even if standard input is no terminal")
	flag.Parse()
	status, err := run(installation{*bin, *cnitool, *conflist, *dataPath, *units}, flag.Args(), *interactive ||
		machine.IsTerminal(os.Stdin))
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(f installation, command []string, interactive bool) (status int, err error) {
	s, err := f.newScene()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := f.install(s.Hosts()); err != nil {
		return 1, err
	}
	other, err := bootNode(s.Nodes[1].Instance)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, other.close()) }()
	if out, err := other.command([]string{"pod", "add", "web"}).CombinedOutput(); err != nil {
		return 1, fmt.Errorf("pod add web on node2: %w: %s", err, out)
	}
	stop, err := (&control{scene: s, other: other}).listen(s.Nodes[0].Instance)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	switch {
	case len(command) > 0:
	case interactive:
		fmt.Print(greeting)
		// "make sim" must not fail if the user has mistyped the last command.
		_, err := runShell(s.Nodes[0].Instance, []string{"bash", "--norc", "-i"})
		return 0, err
	default:
		command = []string{"bash", "--norc"}
	}
	return runShell(s.Nodes[0].Instance, command)
}

func (f installation) newScene() (*paths.Scene, error) {
	list, err := paths.ReadConflist(f.conflist, f.dataPath)
	if err != nil {
		return nil, err
	}
	return paths.New(paths.Options{Bin: f.bin, Conflist: list, Families: []paths.Family{paths.IPv4}})
}
