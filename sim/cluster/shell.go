// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

// Greeting is a text for the user of a Shell. It suggests first commands.
const Greeting = `
This shell controls a Kubernetes cluster in a simulated VPC. Kubernetes, kernel and packets are real.
The machines of the cluster are master, node1 and node2. The host peer is in a peered VPC.

  kubectl get pods -A -o wide         all pods; the cluster's name servers already run
  kubectl create deployment web --image=$AGNHOST --replicas=4 -- /agnhost netexec
  kubectl expose deployment web --port=80 --target-port=8080 --type=NodePort
  at peer curl -s NODE:PORT/clientip  call the Service from another VPC
  on node1 cni-tool status            which pod has which address, of which ENI
  on node1 cni-tool doctor            whether anything is wrong with the node
  ec2 enis                            the ENIs that EC2 has
  exit                                end everything; nothing remains

`

// A Shell has commands for a person who uses a cluster:
//
//   - "kubectl" runs as an administrator of the cluster;
//   - "on MACHINE COMMAND" runs a command on the master or a node;
//   - "at peer COMMAND" runs a command in the network namespace of the peer, and "at internet COMMAND" in that of a
//     host in the internet;
//   - "ec2 enis" prints the ENIs of the simulated EC2;
//   - "ec2 calls" prints how often each action of EC2 was called, and "ec2 drops" prints how many packets the VPC has
//     dropped.
//
// $AGNHOST is an image that the nodes have. $NETPOL is the manifest of an engine for NetworkPolicy.
type Shell struct {
	dir    string
	netpol string
	server net.Listener
}

// NewShell makes a Shell. If the cluster gets more machines later, the Shell's command "on" does not work for them.
func (c *Cluster) NewShell() (s *Shell, err error) {
	s = &Shell{netpol: filepath.Join(c.options.Programs, "netpol.yaml")}
	if s.dir, err = os.MkdirTemp("/run", "shell"); err != nil {
		return nil, err
	}
	if s.server, err = net.Listen("unix", s.socket()); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	go http.Serve(s.server, c.ec2Handler()) // until Close
	if err := s.writeCommands(c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close removes the commands.
func (s *Shell) Close() error { return errors.Join(s.server.Close(), os.RemoveAll(s.dir)) }

// Command is like exec.CommandContext, but the new process finds the commands of the Shell in its $PATH.
func (s *Shell) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = "/root"
	c.Env = append(os.Environ(), "PS1=cluster# ", "HOME=/root", "AGNHOST="+Agnhost, "NETPOL="+s.netpol,
		fmt.Sprintf("PATH=%s:%s", s.dir, os.Getenv("PATH")))
	return c
}

func (s *Shell) socket() string { return filepath.Join(s.dir, "ec2.sock") }

func (s *Shell) writeCommands(c *Cluster) error {
	var errs []error
	for name, script := range map[string]string{
		"on":  c.onScript(),
		"at":  fmt.Sprintf(atScript, c.Peer.Path, c.Fabric.Internet.Path),
		"ec2": fmt.Sprintf("exec curl -sS --unix-socket %s \"http://ec2/${1:-}\"\n", s.socket()),
		"kubectl": fmt.Sprintf("exec %s master kubectl --kubeconfig=%s \"$@\"\n", filepath.Join(s.dir, "on"),
			c.Kubeconfig()),
	} {
		errs = append(errs, os.WriteFile(filepath.Join(s.dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	}
	return errors.Join(errs...)
}

const atScript = `host=$1; shift
case $host in
peer) net=%s ;;
internet) net=%s ;;
*) echo "at: there is no host $host: want peer or internet" >&2; exit 2 ;;
esac
exec nsenter --net=$net "$@"
`

func (c *Cluster) onScript() string {
	script := "machine=$1; shift\ncase $machine in\n"
	machines := []*machine.Machine{c.Master}
	for _, n := range c.Nodes {
		machines = append(machines, n.Machine)
	}
	var names []string
	for _, m := range machines {
		exec := execLine(m.Environ(), m.Command(context.Background(), `"$@"`).Args)
		script += fmt.Sprintf("%s) %s ;;\n", m.Name, exec)
		names = append(names, m.Name)
	}
	return script + fmt.Sprintf("*) echo \"on: there is no machine $machine: want one of %s\" >&2; exit 2 ;;\nesac\n",
		strings.Join(names, ", "))
}

// execLine returns a line of a shell script that executes args with the environment variables env.
func execLine(env, args []string) string {
	words := []string{"exec", "env"}
	for _, e := range env {
		words = append(words, "'"+e+"'")
	}
	return strings.Join(append(words, args...), " ")
}

func (c *Cluster) ec2Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/enis", func(w http.ResponseWriter, _ *http.Request) {
		for _, e := range c.Fabric.EC2.ENIs() {
			fmt.Fprintf(w, "%s  %s  %s  device %d  %s  %v\n", e.ID, e.Subnet, e.Instance, e.Index, e.Status, e.Addrs)
		}
	})
	mux.HandleFunc("/calls", func(w http.ResponseWriter, _ *http.Request) {
		calls := map[string]int{}
		for _, call := range c.Fabric.EC2.Calls() {
			calls[call.Action]++
		}
		for _, action := range slices.Sorted(maps.Keys(calls)) {
			fmt.Fprintf(w, "%5d  %s\n", calls[action], action)
		}
	})
	mux.HandleFunc("/drops", func(w http.ResponseWriter, _ *http.Request) {
		if drops, err := c.Fabric.Drops(); err != nil {
			fmt.Fprintln(w, "ec2:", err)
		} else {
			fmt.Fprintln(w, drops)
		}
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "ec2: there is no %q: want enis, calls or drops\n", r.URL.Path[1:])
	})
	return mux
}
