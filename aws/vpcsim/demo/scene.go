// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
)

// region is a VPC with nodes in one range of addresses and pods in another, and a VPC that it is peered with.
var region = ec2sim.Config{
	VPCs: []ec2sim.VPC{
		{ID: "vpc-main", CIDRs: []netip.Prefix{cidr("10.0.0.0/16"), cidr("100.64.0.0/16")}},
		{ID: "vpc-peer", CIDRs: []netip.Prefix{cidr("10.1.0.0/16")}},
	},
	Subnets: []ec2sim.Subnet{
		{ID: "subnet-nodes", VPC: "vpc-main", Zone: zone, CIDR: cidr("10.0.0.0/24"), MapPublicIP: true},
		{ID: "subnet-hosts", VPC: "vpc-main", Zone: zone, CIDR: cidr("10.0.1.0/24")},
		{ID: "subnet-pods1", VPC: "vpc-main", Zone: zone, CIDR: cidr("100.64.0.0/20"), Tags: kubelet},
		{ID: "subnet-pods2", VPC: "vpc-main", Zone: zone, CIDR: cidr("100.64.16.0/20"), Tags: kubelet},
		{ID: "subnet-pods3", VPC: "vpc-main", Zone: zone, CIDR: cidr("100.64.32.0/20"), Tags: kubelet},
		{ID: "subnet-peer", VPC: "vpc-peer", Zone: zone, CIDR: cidr("10.1.0.0/24")},
	},
	Peerings: []ec2sim.Peering{
		{ID: "pcx-1", Requester: ec2sim.PeerVPC{ID: "vpc-main"}, Accepter: ec2sim.PeerVPC{ID: "vpc-peer"}},
	},
}

const (
	zone         = "us-east-1a"
	instanceType = "m5.large" // 3 ENIs of 10 addresses
)

var (
	cidr    = netip.MustParsePrefix
	kubelet = map[string]string{"kubernetes_kubelet": "true"}
)

// port is where everybody answers.
const port = 8080

// A scene is what the demo plays on.
type scene struct {
	*vpcsim.Fabric
	bin   string // the folder of the programs
	list  *libcni.NetworkConfigList
	nodes []*node
	host  *vpcsim.Instance // in the VPC, and no node of Kubernetes
	peer  *vpcsim.Instance // in the peered VPC
}

// A node is an instance on which pods run.
type node struct {
	*vpcsim.Instance
	cni  *libcni.CNIConfig
	pods []*pod
}

// A pod is a namespace that the plugins have put on the network.
type pod struct {
	*vpcsim.Namespace
	id   string // of its container
	addr netip.Addr
}

func newScene(bin, conflist string) (*scene, error) {
	list, err := libcni.NetworkConfFromFile(conflist)
	if err != nil {
		return nil, err
	}
	f, err := vpcsim.New(region)
	if err != nil {
		return nil, err
	}
	s := &scene{Fabric: f, bin: bin, list: list}
	if err := s.populate(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// populate launches the instances, each with its boot ENI only.
func (s *scene) populate() (err error) {
	for _, name := range []string{"node1", "node2"} {
		i, err := s.launch(name, "subnet-nodes")
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, newNode(i, s.bin))
	}
	if s.host, err = s.launch("host", "subnet-hosts"); err != nil {
		return err
	}
	if s.peer, err = s.launch("peer", "subnet-peer"); err != nil {
		return err
	}
	return s.Internet.Answer(port)
}

// launch starts an instance that answers.
func (s *scene) launch(name, subnet string) (*vpcsim.Instance, error) {
	i, err := s.RunInstance(name, ec2sim.RunInstance{Type: instanceType, Subnet: subnet})
	if err != nil {
		return nil, err
	}
	return i, i.Answer(port)
}

// on returns the pods of a node that have an address of the ENI at a device index, in the order in which they came.
func (n *node) on(index int) []*pod {
	var ps []*pod
	for _, e := range n.ENIs() {
		for _, p := range n.pods {
			if e.Index == index && has(e, p.addr) {
				ps = append(ps, p)
			}
		}
	}
	return ps
}
