// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A Service is a path to a Service of Kubernetes, with its probes.
type Service struct {
	Path
	Probes []Probe
}

// Services are the paths to the Services of package kubeproxy, which work after [Scene.Serve]. Each node has Services
// with the same names, but with different backends.
//
// If a pod with a service loop calls a Service, the backend usually sees the pod's own address. If the pod has no
// service loop, the backend usually sees the node's address. If a caller outside the node calls a NodePort, the backend
// usually sees the node's address. The backend sees the caller's own address only if two conditions are met. First, the
// Service has externalTrafficPolicy Local. Second, the backend's answer leaves through the node, or Options.Kept is
// set.
var Services = []Service{
	{Path{"pod to a Service on another node", pod1, clusterIP(0, "remote"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a Service on its ENI", pod1, clusterIP(0, "sibling"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a Service on another ENI of the node", pod1, clusterIP(0, "local"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a Service that it is itself", pod1, clusterIP(0, "hairpin"), seenAs(node1), jumbo, 0}, calls},
	{Path{"pod to the DNS", pod1, clusterIP(0, "dns"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a Service of its node's network", pod1, clusterIP(0, "node"), Itself, jumbo, 0}, calls},
	{Path{"pod to a Service of a host in the VPC", pod1, clusterIP(0, "vpc-host"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a Service, all backends in turn", pod1, clusterIP(0, "spread"), looped(node1), jumbo, 0},
		eachBackend},
	{Path{"pod to a Service with session affinity", pod1, clusterIP(0, "sticky"), looped(node1), jumbo, 0}, oneBackend},
	{Path{"pod to a Service without backends", pod1, clusterIP(0, "empty"), Itself, jumbo, 0}, refusals},
	{Path{"pod of the other ENI to a Service on another node", cousin, clusterIP(0, "remote"), looped(node1),
		jumbo, 0}, calls},
	{Path{"pod of the other ENI to a Service of another ENI", cousin, clusterIP(0, "sibling"), looped(node1),
		jumbo, 0}, calls},
	{Path{"pod of the second node to a Service on the first", remote, clusterIP(1, "remote"), looped(node2),
		jumbo, 0}, calls},
	{Path{"node to a Service on another node", node1, clusterIP(0, "remote"), Itself, jumbo, 0}, calls},
	{Path{"node to a Service of its pod", node1, clusterIP(0, "local"), Itself, jumbo, 0}, calls},
	{Path{"node to the DNS", node1, clusterIP(0, "dns"), Itself, jumbo, 0}, calls},
	{Path{"node to a Service of a host in the VPC", node1, clusterIP(0, "vpc-host"), Itself, jumbo, 0}, calls},
	{Path{"node to a Service without backends", node1, clusterIP(0, "empty"), Itself, jumbo, 0}, refusals},

	{Path{"host in the VPC to a NodePort, pod on another node", host, nodePort(0, "nodeport-remote"), seenAs(node1),
		jumbo, 0}, calls},
	{Path{"host in the VPC to a NodePort, pod of the node", host, nodePort(0, "nodeport-cluster"), seenAs(node1),
		jumbo, 0}, calls},
	{Path{"host in the VPC to a NodePort, Local", host, nodePort(0, "nodeport-local"), keptCaller(node1), jumbo, 0},
		tcpCalls},
	{Path{"host in the VPC to a NodePort, Local, by UDP", host, nodePort(0, "nodeport-local"), keptUDPCaller(node1),
		jumbo, 0}, calls[1:2]},
	{Path{"internet to a NodePort, pod on another node", internet, nodePortOutside(0, "nodeport-remote"), seenAs(node1),
		ethernet, 0}, calls},
	{Path{"internet to a NodePort, pod of the node", internet, nodePortOutside(0, "nodeport-cluster"), seenAs(node1),
		ethernet, 0}, calls},
	{Path{"internet to a NodePort, Local", internet, nodePortOutside(0, "nodeport-local"), looped(node1), ethernet,
		IPv4}, calls},
	{Path{"internet to a NodePort, Local", internet, nodePortOutside(0, "nodeport-local"), keptCaller(node1), ethernet,
		IPv6}, tcpCalls},
	{Path{"internet to a NodePort, Local, by UDP", internet, nodePortOutside(0, "nodeport-local"), keptUDPCaller(node1),
		ethernet, IPv6}, calls[1:2]},
	{Path{"pod to a NodePort of its node, pod on another node", pod1, nodePort(0, "nodeport-remote"), looped(node1),
		jumbo, 0}, calls},
	{Path{"pod to a NodePort of its node, Local", pod1, nodePort(0, "nodeport-local"), looped(node1), jumbo, 0}, calls},
	{Path{"pod to a NodePort of another node", pod1, nodePort(1, "nodeport-cluster"), seenAs(node2), jumbo, 0}, calls},
	{Path{"pod to a NodePort of another node, Local", pod1, nodePort(1, "nodeport-local"), keptCaller(node2), jumbo, 0},
		tcpCalls},
	{Path{"pod to a NodePort of another node, Local, by UDP", pod1, nodePort(1, "nodeport-local"), keptUDPCaller(node2),
		jumbo, 0}, calls[1:2]},
	{Path{"other node to a NodePort, pod of the node", node2, nodePort(0, "nodeport-cluster"), seenAs(node1),
		jumbo, 0}, calls},

	{Path{"pod to a proxy of the metadata service", pod1, metadataEnd, Itself, jumbo, IPv4}, calls[:1]},
}

// looped returns a Sight: the receiver sees the caller's address if pods have a service loop, and otherwise the node's
// address.
func looped(node Place) Sight {
	return func(s *Scene, f Family, from End) (netip.Addr, error) {
		if s.options.Loopless {
			return seenAs(node)(s, f, from)
		}
		return Itself(s, f, from)
	}
}

// keptCaller returns a Sight for calls to a NodePort. With Options.Kept, the receiver sees the caller's address, and
// otherwise the node's address.
func keptCaller(node Place) Sight {
	return func(s *Scene, f Family, from End) (netip.Addr, error) {
		if s.options.Kept {
			return Itself(s, f, from)
		}
		return seenAs(node)(s, f, from)
	}
}

// keptUDPCaller is like keptCaller, but for UDP, which also needs Options.Tracking to keep the caller's address.
func keptUDPCaller(node Place) Sight {
	return func(s *Scene, f Family, from End) (netip.Addr, error) {
		if s.options.Tracking {
			return keptCaller(node)(s, f, from)
		}
		return seenAs(node)(s, f, from)
	}
}

// hostsByRole returns, for the rules of this node, the host in each role of package kubeproxy. For example, a pod on
// the other node is Remote.
func hostsByRole(node int) map[kubeproxy.Host]Place {
	return map[kubeproxy.Host]Place{
		kubeproxy.Node:    []Place{node1, node2}[node],
		kubeproxy.Client:  PodOn(node, eth1, 0),
		kubeproxy.Sibling: PodOn(node, eth1, 1),
		kubeproxy.Local:   PodOn(node, eth2, 0),
		kubeproxy.Remote:  PodOn(1-node, eth1, 0),
		kubeproxy.VPCHost: host,
	}
}

// clusterIP returns the place of a Service at its ClusterIP, with the backends that the rules of this node choose.
func clusterIP(node int, name string) Place {
	return func(s *Scene, f Family) (End, error) {
		svc, backends, err := s.serviceOn(node, name, f)
		return End{Addr: netip.AddrPortFrom(addrOf(svc.ClusterIP, f), svc.Port), backends: backends}, err
	}
}

// nodePort returns the place of a Service for callers in the VPC: at the node's address in the VPC, and the NodePort.
func nodePort(node int, name string) Place {
	return func(s *Scene, f Family) (End, error) {
		svc, backends, err := s.serviceOn(node, name, f)
		if err != nil {
			return End{}, err
		}
		e, err := hostsByRole(node)[kubeproxy.Node](s, f)
		return End{Addr: netip.AddrPortFrom(e.Addr.Addr(), svc.NodePort), Outside: e.Outside, backends: backends}, err
	}
}

// nodePortOutside returns the place of a Service for callers in the internet: at the node's public address, and the
// NodePort.
func nodePortOutside(node int, name string) Place {
	return func(s *Scene, f Family) (End, error) {
		e, err := nodePort(node, name)(s, f)
		e.Addr = netip.AddrPortFrom(e.Outside, e.Addr.Port())
		return e, err
	}
}

// serviceOn returns the Service with this name, and the namespaces of its backends on this node.
func (s *Scene) serviceOn(node int, name string, f Family) (
	svc kubeproxy.Service, backends []*vpcsim.Namespace, err error,
) {
	i := slices.IndexFunc(kubeproxy.Services(), func(svc kubeproxy.Service) bool { return svc.Name == name })
	if i < 0 {
		return svc, nil, fmt.Errorf("kube-proxy has no rules for a Service %s", name)
	}
	svc = kubeproxy.Services()[i]
	for _, host := range svc.Backends {
		e, err := hostsByRole(node)[host](s, f)
		if err != nil {
			return svc, nil, err
		}
		backends = append(backends, e.Namespace)
	}
	return svc, backends, nil
}

func nodePorts() (all []uint16) {
	for _, svc := range kubeproxy.Services() {
		if svc.NodePort != 0 {
			all = append(all, svc.NodePort)
		}
	}
	return all
}

func addrOf(a kubeproxy.Addrs, f Family) netip.Addr {
	if f == IPv6 {
		return a.V6
	}
	return a.V4
}
