// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/vpcsim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A check is a way that packets must find, and as whom the sender arrives. A service's name tells where its backend is.
type check struct {
	name     string
	from, to place
	seen     sight
}

var checks = []check{
	{"pod to pod, on one ENI", pod1, podOn(node1, eth1, 1), itself},
	{"pod to pod, on two ENIs of a node", pod1, podOn(node1, eth2, 0), itself},
	{"pod to pod, on two nodes", pod1, podOn(node2, eth1, 0), itself},
	{"pod to its node", pod1, node1, itself},
	{"node to its pod", node1, pod1, itself},
	{"pod to another node", pod1, node2, itself},
	{"node to a pod of another node", node2, pod1, itself},
	{"pod to a host in the VPC", pod1, host, itself},
	{"host in the VPC to pod", host, podOn(node1, eth2, 0), itself},
	{"pod to a host in a peered VPC", pod1, peer, itself},
	{"host in a peered VPC to pod", peer, pod1, itself},
	{"pod to the internet", pod1, internet, publicAddress},
	{"pod to a service, another node", pod1, service(remote), itself},
	{"pod to a service, the same ENI", pod1, service(sibling), itself},
	{"pod to a service, the other ENI", pod1, service(cousin), itself},
}

var pod1 = podOn(node1, eth1, 0)

const (
	eth1 = 1
	eth2 = 2
)

// services are those of which kube-proxy knows one backend each.
var services = map[string]place{
	remote:  podOn(node2, eth1, 0),
	sibling: podOn(node1, eth1, 1),
	cousin:  podOn(node1, eth2, 0),
}

const (
	remote  = "172.20.0.10:80"
	sibling = "172.20.0.11:80"
	cousin  = "172.20.0.12:80"
)

// An end is one of the two of a connection.
type end struct {
	*vpcsim.Namespace // nil: it can only be called
	addr              netip.AddrPort
	public            netip.Addr // as which the internet knows it
}

// A place finds an end, once the pods are there.
type place func(*scene) (end, error)

// A sight is the address as which the sender should be seen.
type sight func(from end) netip.Addr

func itself(from end) netip.Addr        { return from.addr.Addr() }
func publicAddress(from end) netip.Addr { return from.public }

func node1(s *scene) (end, error) { return instance(s.nodes[0].Instance), nil }
func node2(s *scene) (end, error) { return instance(s.nodes[1].Instance), nil }
func host(s *scene) (end, error)  { return instance(s.host), nil }
func peer(s *scene) (end, error)  { return instance(s.peer), nil }
func internet(s *scene) (end, error) {
	return end{s.Internet, at(vpcsim.InternetAddr), netip.Addr{}}, nil
}

func instance(i *vpcsim.Instance) end { return end{i.Namespace, at(i.Addr()), i.PublicIP()} }

func at(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// podOn is a pod by its node, the device index of its ENI, and its number there.
func podOn(node place, index, number int) place {
	return func(s *scene) (end, error) {
		on, err := node(s)
		if err != nil {
			return end{}, err
		}
		for _, n := range s.nodes {
			if pods := n.on(index); n.Namespace == on.Namespace && number < len(pods) {
				return end{pods[number].Namespace, at(pods[number].addr), on.public}, nil
			}
		}
		return end{}, fmt.Errorf("%s has no pod number %d on eth%d", on.Name, number+1, index)
	}
}

// service is a ClusterIP and its port.
func service(addr string) place {
	return func(*scene) (end, error) { return end{addr: netip.MustParseAddrPort(addr)}, nil }
}

// check sends packets each way, and then asks the fabric whether any had a false source.
func (s *scene) check(ctx context.Context, out *output) (err error) {
	proxy, err := s.kubeProxy()
	if err != nil {
		return err
	}
	if err := proxy.Add(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, proxy.Del()) }()
	for _, c := range checks {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		out.progress("checking: %s", c.name)
		way, err := c.try(s)
		out.verdict(c.name, way, err)
	}
	drops, err := s.Drops()
	if err == nil && drops != (vpcsim.Drops{}) {
		err = errors.New(drops.String())
	}
	out.verdict("the fabric has dropped nothing", drops.String(), err)
	return s.Err()
}

// try sends an echo request, and makes a TCP connection that is answered with the address that it is seen to come from.
func (c check) try(s *scene) (way string, err error) {
	from, err := c.from(s)
	if err != nil {
		return "", err
	}
	to, err := c.to(s)
	if err != nil {
		return "", err
	}
	protocols := "tcp"
	if to.Namespace != nil { // a service has no address that could answer
		protocols = "ping, tcp"
		if err := from.Ping(to.addr.Addr()); err != nil {
			return "", err
		}
	}
	seen, err := from.Call("tcp", to.addr)
	if err != nil {
		return "", err
	}
	if want := c.seen(from); seen.Addr() != want {
		return "", fmt.Errorf("%s to %s is seen as %s, not as %s", from.addr.Addr(), to.addr, seen.Addr(), want)
	}
	return fmt.Sprintf("%-13s > %-14s %s, as %s", from.addr.Addr(), shown(to), protocols, seen.Addr()), nil
}

func shown(e end) string {
	if e.Namespace == nil {
		return e.addr.String()
	}
	return e.addr.Addr().String()
}

// kubeProxy is what kube-proxy's rules on the first node come to: the ClusterIP becomes the address of a backend.
func (s *scene) kubeProxy() (nl.Wiring, error) {
	c := nl.Chain{Name: "services", Type: "nat", Hook: "prerouting", Priority: -100}
	for service, backend := range services {
		addr := netip.MustParseAddrPort(service)
		b, err := backend(s)
		if err != nil {
			return nil, err
		}
		c.Rules = append(c.Rules, nl.NFRule{
			nl.DAddr(netip.PrefixFrom(addr.Addr(), 32)), nl.DPort("tcp", addr.Port(), addr.Port()), nl.DNAT(b.addr)})
	}
	return nl.Wiring{{NS: s.nodes[0].NS, Object: nl.Table{Family: "ip", Name: "kube-proxy", Chains: []nl.Chain{c}}}}, nil
}
