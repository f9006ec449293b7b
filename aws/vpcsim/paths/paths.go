// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package paths knows the ways that packets have to find where pods have addresses of a VPC: between pods, nodes, other
// hosts, peers and the internet, each with the address as which the sender arrives. It is the one list of them, for the
// demo, which tells what it does, and for the test that goes every way by every protocol, in each mode of the plugins.
//
// A [Scene] is where they are: a simulated VPC (package vpcsim) with two nodes, on which libcni calls the plugins as a
// container runtime does, and some others who have never heard of Kubernetes. Kernel, packets and plugins are real.
//
//	s, err := paths.New(paths.Options{Bin: "bin", Conflist: conflist, Families: []paths.Family{paths.IPv4}})
//	pod, err := s.Nodes[0].Add(ctx, "default", "pod1")
//	...
//	result := paths.Daily[0].Try(s, paths.IPv4, paths.Probes)
//
// A further path is a line in a list; who is at its ends is a [Place].
package paths

import "net/netip"

// A Path is a way that packets must find, and as whom the sender arrives.
type Path struct {
	Name     string
	From, To Place
	Seen     Sight
	MTU      int    // of the path, in bytes
	Only     Family // zero: both
}

// The MTU of a VPC, and that of the internet (EC2 user guide, "Network MTU for your EC2 instance").
const (
	jumbo    = 9001
	ethernet = 1500
)

// Daily are the paths on which everything in a cluster depends.
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
	{"pod to the internet", pod1, internet, outside, ethernet, 0},
}

// Further are those that need a key of the configuration, or more than one CIDR of the VPC or one family of addresses. A
// pod with hostNetwork is the node, as far as packets go.
var Further = []Path{
	{"pod to pod, on two nodes, back", remote, pod1, Itself, jumbo, 0},
	{"pod of the other ENI to its node", cousin, node1, Itself, jumbo, 0},
	{"node to its pod of the other ENI", node1, cousin, Itself, jumbo, 0},
	{"pod of the other ENI to another node", cousin, node2, Itself, jumbo, 0},
	{"pod of the other ENI to the internet", cousin, internet, outside, ethernet, 0},
	{"pod to a host in another CIDR of the VPC", pod1, second, Itself, jumbo, 0},
	{"host in another CIDR of the VPC to pod", second, pod1, Itself, jumbo, 0},
	{"pod to a host beyond, by routeToCidrs", pod1, office, Itself, jumbo, 0},
	{"host beyond to pod", office, cousin, Itself, jumbo, 0},
	{"internet to pod", internet, pod1, Itself, ethernet, IPv6},
}

// A Family is that of the addresses that packets bear.
type Family int

// The families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

func (f Family) of(a netip.Addr) bool { return a.Is6() == (f == IPv6) }

// In says whether the path is one of a family.
func (p Path) In(f Family) bool { return p.Only == 0 || p.Only == f }
