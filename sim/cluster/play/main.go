// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command play starts a Kubernetes cluster on the simulated VPC, and a shell in which a person can use the cluster.
// When the shell ends, the cluster ends, too.
//
// If there are arguments, play runs them as a command, and exits with the command's status. Without arguments, play
// runs bash. If standard input is a terminal or if the flag -i is set, bash is interactive, and the exit status is 0.
// Otherwise, bash runs the script on standard input, and the exit status is the script's status. $PATH has kubectl and
// other commands for the cluster (see [cluster.Shell]).
//
// The command "make cluster" runs play in a VM, because package cluster needs root and a suitable kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

func main() {
	var o cluster.Options
	flag.StringVar(&o.Plugins, "bin", "bin", "`directory` of our programs")
	flag.StringVar(&o.Programs, "programs", ".cache/cluster", "`directory` of Kubernetes, etcd and CoreDNS")
	flag.StringVar(&o.Runtime, "runtime", ".cache/cri", "`directory` of containerd and runc")
	flag.StringVar(&o.Peers, "peers", ".cache/peers", "`directory` of the CNI project's plugins")
	flag.StringVar(&o.Units, "units", "systemd", "`directory` of our units")
	flag.StringVar(&o.Logs, "logs", "/tmp/cluster-logs", "`directory` for the output of all programs")
	flag.StringVar(&o.Proxy, "proxy", "nftables", "`mode` of kube-proxy: nftables or iptables")
	conflist := flag.String("conflist", "conflist-examples/portmap.conflist", "`file` to install on the nodes")
	interactive := flag.Bool("i", false, "run an interactive shell, even if standard input is no terminal")
	flag.Parse()
	status, err := run(o, *conflist, flag.Args(), *interactive || machine.IsTerminal(os.Stdin))
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(o cluster.Options, conflist string, command []string, interactive bool) (status int, err error) {
	list, err := os.ReadFile(conflist)
	if err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	began := time.Now()
	fmt.Fprintln(os.Stderr, "cluster: starting; this takes one or two minutes")
	node := cluster.NodeOptions{Conflist: list}
	c, err := cluster.Start(ctx, o, node, node)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	fmt.Fprintf(os.Stderr, "cluster: ready after %.0f s\n", time.Since(began).Seconds())
	s, err := c.NewShell()
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	switch {
	case len(command) > 0:
	case interactive:
		fmt.Print(cluster.Greeting)
		// "make cluster" must not fail if the user's last command has failed.
		_, err := machine.Attach(s.Command(ctx, "bash", "--norc", "-i"), (*exec.Cmd).Run)
		return 0, err
	default:
		command = []string{"bash", "--norc"}
	}
	return machine.Attach(s.Command(ctx, command[0], command[1:]...), (*exec.Cmd).Run)
}
