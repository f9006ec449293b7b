// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package paths lists all paths of packets between pods, nodes, other hosts, peers and the internet. The pods have
// addresses of their VPC. Each path has the source address that the receiver must see. The demo uses a part of the
// list. A test tries all paths with all protocols, in all modes of the plugins.
//
// A [Scene] is a simulated VPC (package vpcsim) that has the ends of the paths: two nodes, and some hosts outside
// Kubernetes. libcni calls the plugins on the nodes as a container runtime does. Kernel, packets and plugins are real.
//
//	s, err := paths.New(paths.Options{Bin: "bin", Conflist: conflist, Families: []paths.Family{paths.IPv4}})
//	pod, err := s.Nodes[0].Add(ctx, "default", "pod1")
//	...
//	result := paths.Daily[0].Try(s, paths.IPv4, paths.Probes)
package paths

import "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"

// A Path has two ends, and the source address that the receiver must see.
type Path struct {
	Name     string
	From, To Place
	Seen     Sight
	MTU      int    // in bytes
	Only     Family // the path exists only for this family; zero: for both
}

// The MTU of a VPC, and the MTU of the internet (EC2 user guide, "Network MTU for your EC2 instance").
const (
	jumbo    = 9001
	ethernet = 1500
)

// Daily are the paths that every cluster needs.
var Daily = []Path{
	{"pod to pod, on one ENI", pod1, sibling, Itself, jumbo, 0},
	{"pod to pod, on two ENIs of a node", pod1, cousin, Itself, jumbo, 0},
	{"pod to pod, on two nodes", pod1, remote, Itself, jumbo, 0},
	{"pod to its node", pod1, node1, Itself, jumbo, 0},
	{"node to its pod", node1, pod1, Itself, jumbo, 0},
	{"pod to another node", pod1, node2, Itself, jumbo, 0},
	{"node to a pod of another node", node2, pod1, Itself, jumbo, 0},
	{"pod to a host in the VPC", pod1, host, Itself, jumbo, 0},
	{"host in the VPC to pod", host, cousin, Itself, jumbo, 0},
	{"pod to a host in a peered VPC", pod1, peer, Itself, jumbo, 0},
	{"host in a peered VPC to pod", peer, pod1, Itself, jumbo, 0},
	{"pod to the internet", pod1, internet, seenFromOutside, ethernet, 0},
}

// Further has paths that need a special key of the configuration, several CIDRs of the VPC, or both families. Pods with
// hostNetwork have no paths here, because they send and receive packets as the node does.
var Further = []Path{
	{"pod to pod, on two nodes, back", remote, pod1, Itself, jumbo, 0},
	{"pod of the other ENI to its node", cousin, node1, Itself, jumbo, 0},
	{"node to its pod of the other ENI", node1, cousin, Itself, jumbo, 0},
	{"pod of the other ENI to another node", cousin, node2, Itself, jumbo, 0},
	{"pod of the other ENI to the internet", cousin, internet, seenFromOutside, ethernet, 0},
	{"pod to a host in another CIDR of the VPC", pod1, second, Itself, jumbo, 0},
	{"host in another CIDR of the VPC to pod", second, pod1, Itself, jumbo, 0},
	{"pod to a host beyond, by routeToCidrs", pod1, office, Itself, jumbo, 0},
	{"host beyond to pod", office, cousin, Itself, jumbo, 0},
	{"internet to pod", internet, pod1, Itself, ethernet, IPv6},
}

// A Family is IPv4 or IPv6.
type Family = nl.Family

// The families that a pod's addresses may have.
const (
	IPv4 = nl.IPv4
	IPv6 = nl.IPv6
)

// In reports whether the path exists for a family.
func (p Path) In(f Family) bool { return p.Only == 0 || p.Only == f }
