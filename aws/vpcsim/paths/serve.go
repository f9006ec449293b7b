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
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim/kubeproxy"
)

// DNS is where the backend of the Service dns answers, and so all pods should.
const DNS = 53

// Serve gives both nodes the rules of kube-proxy in one of its modes, each with its own pods in the roles of package
// kubeproxy, two on its first ENI and one on its second, and those of a proxy of the metadata service. After stop they
// are gone.
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
		undo = append(undo, unload, func() error { return n.proxyMetadata("-D") })
		if err := n.proxyMetadata("-A"); err != nil {
			return nil, errors.Join(err, stop())
		}
	}
	return stop, nil
}

// scenario is who has the roles on a node.
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

// metadataAddr is where the metadata service is (EC2 user guide, "Instance metadata and user data").
var metadataAddr = netip.MustParseAddrPort("169.254.169.254:80")

// metadata is the proxy in place of the metadata service, on the first node.
func metadata(s *Scene, f Family) (End, error) {
	e, err := node1(s, f)
	e.Namespace, e.Addr, e.backends = nil, metadataAddr, e.answering()
	return e, err
}

// proxyMetadata adds or deletes the rule that kube2iam and its kin have for pods: what is for the metadata service goes
// to a program on the node, which knows the pod by its address.
func (n *Node) proxyMetadata(verb string) error {
	rule := fmt.Sprintf("iptables -w -t nat %s PREROUTING -i veth+ -p tcp -d %s --dport %d -j DNAT --to-destination %s:%d",
		verb, metadataAddr.Addr(), metadataAddr.Port(), n.Addr(), Port)
	if !n.Addr().IsValid() {
		return nil
	}
	return n.Do(func() error {
		args := strings.Fields(rule)
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %s: %w: %s", n.Name, rule, err, bytes.TrimSpace(out))
		}
		return nil
	})
}
