// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
)

const DNS = 53

// Serve adds kube-proxy's rules in this mode to both nodes, and a rule for the metadata service. The function "stop"
// removes the rules. Each node must already have two pods on eth1 and one on eth2 (see [kubeproxy.Scenario]).
func (s *Scene) Serve(m kubeproxy.Mode) (stop func() error, err error) {
	var undo []func() error
	stop = func() (err error) {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
		return err
	}
	for i, n := range s.Nodes {
		scenario, err := s.scenarioOf(i)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		unload, err := kubeproxy.Load(n.NS, m, scenario)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		undo = append(undo, unload, func() error { return n.proxyMetadata("delete") })
		if err := n.proxyMetadata("add"); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// scenarioOf returns the scenario for the rules of a node, with the hosts of hostsByRole.
func (s *Scene) scenarioOf(node int) (kubeproxy.Scenario, error) {
	all := kubeproxy.Scenario{}
	for role, place := range hostsByRole(node) {
		var a kubeproxy.Addrs
		for _, f := range s.options.Families {
			e, err := place(s, f)
			if err != nil {
				return nil, fmt.Errorf("who is %s to node %d: %w", role, node+1, err)
			}
			if f == IPv6 {
				a.V6 = e.Addr.Addr()
			} else {
				a.V4 = e.Addr.Addr()
			}
		}
		all[role] = a
	}
	return all, nil
}

// metadataAddr is the address of the metadata service (EC2 user guide, "Instance metadata and user data").
var metadataAddr = netip.MustParseAddrPort("169.254.169.254:80")

// metadataEnd returns an End with the address of the metadata service. After [Scene.Serve], a program on the first node
// answers the pods' calls to this address: see proxyMetadata.
func metadataEnd(s *Scene, f Family) (End, error) {
	e, err := node1(s, f)
	e.Namespace, e.Addr, e.backends = nil, metadataAddr, e.answerers()
	return e, err
}

// proxyMetadata adds or deletes a rule like that of kube2iam. The rule sends the pods' packets for the metadata service
// to a program on the node. kube2iam recognises a pod by the source address of the packets.
func (n *Node) proxyMetadata(verb string) error {
	if !n.Addr().IsValid() {
		return nil
	}
	text := "delete table ip proxy"
	if verb == "add" {
		text = fmt.Sprintf(`table ip proxy { chain metadata { type nat hook prerouting priority dstnat
			iifname "veth*" ip daddr %s tcp dport %d dnat to %s:%d
		}; }`, metadataAddr.Addr(), metadataAddr.Port(), n.Addr(), Port)
	}
	return n.Do(func() error {
		if out, err := exec.Command("nft", text).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s: %w: %s", n.Name, text, err, bytes.TrimSpace(out))
		}
		return nil
	})
}
