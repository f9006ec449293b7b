// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package kubeproxy loads the rules of the real kube-proxy into a network namespace that simulates a node. The package
// contains kube-proxy's rules for Kubernetes Services in the modes iptables and nftables, for IPv4 and IPv6. The
// package is only for tests. It executes iptables-restore(8), ip6tables-restore(8) and nft(8).
//
// The rules in testdata are a recording of an unmodified kube-proxy v1.36.3 with its default flags. The flag
// --cluster-cidr is not set, as in clusters whose pods have addresses of the VPC. So kube-proxy does not know which
// addresses belong to pods, and its rules do not masquerade packets from a pod to a ClusterIP. The recorded addresses
// are from prefixes for documentation. Load replaces them by the addresses of your hosts and pods:
//
//	unload, err := kubeproxy.Load(node, kubeproxy.NFTables, kubeproxy.Scenario{
//		kubeproxy.Node:    {V4: nodeAddr},  // no V6: then only the rules for IPv4
//		kubeproxy.Client:  {V4: pod1},
//		kubeproxy.Sibling: {V4: pod2},      // on the ENI of the client
//		kubeproxy.Local:   {V4: pod3},      // on another ENI of the node
//		kubeproxy.Remote:  {V4: pod4},      // on another node
//		kubeproxy.VPCHost: {V4: otherAddr}, // no pod at all
//	})
//
// After Load, pod1 can call each Service in [Services] at its ClusterIP, by TCP and UDP. For a second node, call Load
// again, with other hosts in the Scenario. The names of chains keep hashes of the recorded addresses.
//
// To record again, as root:
//
//	cd sim/kubeproxy/record && go run .
//
// The recording has neither the policies of built-in chains nor packet counters (see tidySave in record/).
//
// kube-proxy and this project are under the Apache License 2.0. This project contains no source of kube-proxy.
package kubeproxy

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A Mode is a value of kube-proxy's flag --proxy-mode.
type Mode string

const (
	IPTables Mode = "iptables"
	NFTables Mode = "nftables"
)

// Modes has all recorded modes.
var Modes = []Mode{IPTables, NFTables}

// Load loads the recorded rules of a mode into a namespace. It replaces the recorded addresses by those of the
// scenario. It loads the rules of a family only if the scenario's Node has an address of this family. Load also sets
// the sysctls that kube-proxy sets on a node (testdata/*/sysctls), and empties the connection tracker.
//
// The function "unload" removes the rules, and empties the connection tracker. Like kube-proxy, it does not reset the
// sysctls. Call unload before the next Load, because Load does not check whether the namespace already has rules.
func Load(n *nl.NS, m Mode, s Scenario) (unload func() error, err error) {
	var on, off []command
	for _, f := range families {
		if !f.addrOf(s[Node]).IsValid() {
			continue
		}
		rules, err := s.replaceAddrs(f, readRecorded(m, f.name+".rules"))
		if err != nil {
			return nil, fmt.Errorf("rules of kube-proxy: %w", err)
		}
		load, unload := m.commandPair(f, rules)
		on, off = append(on, load), append(off, unload)
	}
	if len(on) == 0 {
		return nil, fmt.Errorf("rules of kube-proxy: host %q has no address", Node)
	}
	if err := runCommands(n, on); err != nil {
		return nil, fmt.Errorf("load rules of kube-proxy: %w", err)
	}
	unload = func() error { return errors.Join(runCommands(n, off), flushConntrack(n)) }
	return unload, errors.Join(flushConntrack(n), m.sysctls(n).Add())
}

type command struct {
	args  []string
	stdin string
}

func runCommands(n *nl.NS, all []command) error {
	return n.Do(func() error {
		for _, c := range all {
			p := exec.Command(c.args[0], c.args[1:]...)
			p.Stdin = strings.NewReader(c.stdin)
			if out, err := p.CombinedOutput(); err != nil {
				return fmt.Errorf("%s in %s: %w: %s", strings.Join(c.args, " "), n.Name, err, bytes.TrimSpace(out))
			}
		}
		return nil
	})
}
