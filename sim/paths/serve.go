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

// DNS is the port of the Service dns, on which all pods must answer.
const DNS = 53

// Serve gives both nodes the rules of kube-proxy in one of its modes, and the rules of a proxy of the metadata service.
// For each node, three pods of that node have the roles of package kubeproxy: two pods on eth1, and one pod on eth2.
// The function stop removes the rules.
func (s *Scene) Serve(m kubeproxy.Mode) (stop func() error, err error) {
	var undo []func() error
	stop = func() (err error) {
		for _, f := range slices.Backward(undo) {
			err = errors.Join(err, f())
		}
		return err
	}
	for i, n := range s.Nodes {
		scenario, err := s.scenario(i)
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

// scenario returns the addresses of the hosts that have a role for a node.
func (s *Scene) scenario(node int) (kubeproxy.Scenario, error) {
	all := kubeproxy.Scenario{}
	for role, place := range roles(node) {
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

// metadata returns the metadata service as an End. A proxy on the first node answers for the service.
func metadata(s *Scene, f Family) (End, error) {
	e, err := node1(s, f)
	e.Namespace, e.Addr, e.backends = nil, metadataAddr, e.answering()
	return e, err
}

// proxyMetadata adds or deletes a rule like the rule of kube2iam and similar proxies. The rule redirects the packets
// that pods send to the metadata service: they go to a program on the node. This program identifies a pod by the pod's
// address.
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
