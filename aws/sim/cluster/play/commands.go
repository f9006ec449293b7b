// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/cluster"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/machine"
)

// greeting explains the shell, and suggests first commands.
const greeting = `
You are beside a Kubernetes cluster in a simulated VPC. The cloud is simulated; Kubernetes, kernel and packets are real.
It has master, node1 and node2. peer is a host in a peered VPC.

  kubectl get pods -A -o wide                     the name servers of the cluster run already
  kubectl create deployment web --image=` + cluster.Agnhost + ` --replicas=4 -- /agnhost netexec
  kubectl expose deployment web --port=80 --target-port=8080 --type=NodePort
  on node1 cni-tool status                        which pod has which address, of which ENI
  on node1 cni-tool doctor                        whether anything is wrong with the node
  at peer curl -s NODE:PORT/clientip              call the Service from another VPC
  ec2 enis                                        what EC2 has
  exit                                            ends everything; nothing remains

`

// writeCommands writes the commands of the shell, which are scripts.
func writeCommands(dir string, c *cluster.Cluster) error {
	on := "#!/bin/sh\nnode=$1; shift\ncase $node in\n"
	machines := []*machine.Machine{c.Master}
	for _, n := range c.Nodes {
		machines = append(machines, n.Machine)
	}
	for _, m := range machines {
		on += fmt.Sprintf("%s) %s ;;\n", m.Name, line(m.Environ(), m.Command(context.Background(), `"$@"`).Args))
	}
	on += "*) echo \"on: there is no $node: want master, node1 or node2\" >&2; exit 2 ;;\nesac\n"
	at := fmt.Sprintf(`#!/bin/sh
host=$1; shift
case $host in
peer) net=%s ;;
internet) net=%s ;;
*) echo "at: there is no $host: want peer or internet" >&2; exit 2 ;;
esac
exec nsenter --net=$net "$@"
`, c.Peer.Path, c.Fabric.Internet.Path)
	ec2 := fmt.Sprintf("#!/bin/sh\nexec curl -sS --unix-socket %s \"http://ec2/${1:-}\"\n", filepath.Join(dir, "ec2.sock"))
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", filepath.Join(dir, "on")+" master kubectl --kubeconfig="+c.Kubeconfig())
	var errs []error
	for name, script := range map[string]string{"on": on, "at": at, "ec2": ec2, "kubectl": kubectl} {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	return errors.Join(errs...)
}

// line is a command of a script with an environment.
func line(env, args []string) string {
	words := []string{"exec", "env"}
	for _, e := range env {
		words = append(words, "'"+e+"'")
	}
	return strings.Join(append(words, args...), " ")
}

// serve answers what the command ec2 asks on a socket, until stop.
func serve(c *cluster.Cluster, socket string) (stop func() error, err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
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
		drops, err := c.Fabric.Drops()
		fmt.Fprintln(w, drops, errors.Join(err, c.Fabric.Err()))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "ec2: there is no %q: want enis, calls or drops\n", r.URL.Path[1:])
	})
	go http.Serve(l, mux) // until the listener is closed
	return l.Close, nil
}
