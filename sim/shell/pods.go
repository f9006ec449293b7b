// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// answerCalls answers calls in the network namespace of this process, as a pod's program does. It prints a line when it
// is ready. It returns when the namespace's name args[1] disappears from /run/netns.
func answerCalls(args []string) int {
	ns, err := nl.Open("pod", "/proc/self/ns/net")
	if err == nil {
		err = (&vpcsim.Namespace{NS: ns}).Answer(paths.Port)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "answer:", err)
		return 1
	}
	fmt.Println("ready")
	for err == nil { // watch the name, because this process keeps the namespace alive after the deletion of the name
		time.Sleep(50 * time.Millisecond)
		_, err = os.Stat("/run/netns/" + args[1])
	}
	return 0
}

// callHost connects to HOST[:PORT] by TCP. It prints the source address that the other end sees.
func callHost(args []string) int {
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: call HOST[:PORT]")
		return 2
	}
	to := args[1]
	if !strings.Contains(to, ":") {
		to = fmt.Sprint(to, ":", paths.Port)
	}
	seen, err := sourceSeenBy(to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "call:", err)
		return 1
	}
	fmt.Println(seen)
	return 0
}

func sourceSeenBy(to string) (netip.Addr, error) {
	const patience = 5 * time.Second
	conn, err := net.DialTimeout("tcp", to, patience)
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	err = errors.Join(conn.SetDeadline(time.Now().Add(patience)), conn.(*net.TCPConn).CloseWrite())
	text, failed := io.ReadAll(conn)
	if err = errors.Join(err, failed); err != nil {
		return netip.Addr{}, err
	}
	from, _, _ := strings.Cut(string(text), " ")
	seen, err := netip.ParseAddrPort(from)
	return seen.Addr(), err
}

func (c *control) serviceCommand(args []string, out io.Writer) (err error) {
	switch {
	case len(args) == 2 && args[0] == "add" && c.endService == nil:
		addrs, err := net.LookupHost(args[1])
		if err != nil {
			return err
		}
		to, err := netip.ParseAddr(addrs[0])
		if err != nil {
			return err
		}
		s := serviceOf(kubeproxy.Remote)
		if c.endService, err = kubeproxy.Load(c.scene.Nodes[0].NS, kubeproxy.NFTables, c.scenario(to)); err == nil {
			fmt.Fprintf(out, "%s is the Service of %s\n", netip.AddrPortFrom(s.ClusterIP.V4, s.Port), args[1])
		}
		return err
	case len(args) == 1 && args[0] == "del" && c.endService != nil:
		err, c.endService = c.endService(), nil
		return err
	}
	return errors.New("usage: service add POD, or service del. add makes a Service of the pod, with kube-proxy's " +
		"rules on node1. There can be only one Service: del deletes it")
}

// serviceOf returns the Service that has no node port, and whose only backend is the host with this role.
func serviceOf(role kubeproxy.Host) kubeproxy.Service {
	all := kubeproxy.Services()
	return all[slices.IndexFunc(all, func(s kubeproxy.Service) bool {
		return len(s.Backends) == 1 && s.Backends[0] == role && s.NodePort == 0
	})]
}

// scenario returns a scenario in which the backend of the shell's Service has this address. The role Node has the
// address of the node. The hosts in all other roles have addresses for documentation (RFC 5737).
func (c *control) scenario(backend netip.Addr) kubeproxy.Scenario {
	s := kubeproxy.Scenario{kubeproxy.Node: {V4: c.scene.Nodes[0].Addr()}, kubeproxy.Remote: {V4: backend}}
	unused := netip.MustParseAddr("192.0.2.1")
	for _, role := range []kubeproxy.Host{kubeproxy.Client, kubeproxy.Sibling, kubeproxy.Local, kubeproxy.VPCHost} {
		s[role], unused = kubeproxy.Addrs{V4: unused}, unused.Next()
	}
	return s
}
