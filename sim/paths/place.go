// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"fmt"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// An End is one end of a connection.
type End struct {
	*vpcsim.Namespace // nil: the end can only get calls, as a Service
	Addr              netip.AddrPort
	Outside           netip.Addr // the address of the end as the internet sees it

	backends []*vpcsim.Namespace // the backends of a Service; each may answer
}

// A Place finds an end in a scene, after the pods were added.
type Place func(*Scene, Family) (End, error)

// A Sight returns the source address that the receiver must see.
type Sight func(s *Scene, f Family, from End) (netip.Addr, error)

// Itself returns the sender's own address.
func Itself(_ *Scene, _ Family, from End) (netip.Addr, error) { return from.Addr.Addr(), nil }

func outside(_ *Scene, _ Family, from End) (netip.Addr, error) { return from.Outside, nil }

// as returns a Sight: the receiver sees the address of another end, which forwards the sender's packets.
func as(p Place) Sight {
	return func(s *Scene, f Family, _ End) (netip.Addr, error) {
		e, err := p(s, f)
		return e.Addr.Addr(), err
	}
}

// The ENIs of a node with pods, by their device indices.
const (
	eth1 = 1
	eth2 = 2
)

var (
	pod1    = PodOn(0, eth1, 0)
	sibling = PodOn(0, eth1, 1)
	cousin  = PodOn(0, eth2, 0)
	remote  = PodOn(1, eth1, 0)
)

func node1(s *Scene, f Family) (End, error)  { return instance(s.Nodes[0].Instance, f) }
func node2(s *Scene, f Family) (End, error)  { return instance(s.Nodes[1].Instance, f) }
func host(s *Scene, f Family) (End, error)   { return other(s, "host", f) }
func peer(s *Scene, f Family) (End, error)   { return other(s, "peer", f) }
func second(s *Scene, f Family) (End, error) { return other(s, "second", f) }
func office(s *Scene, f Family) (End, error) { return other(s, "office", f) }

func other(s *Scene, name string, f Family) (End, error) {
	i, ok := s.others[name]
	if !ok {
		return End{}, fmt.Errorf("the scene has no %s: its Options are not for the further paths", name)
	}
	return instance(i, f)
}

func internet(s *Scene, f Family) (End, error) {
	a := vpcsim.InternetAddr
	if f == IPv6 {
		a = vpcsim.InternetAddr6
	}
	return end(s.Internet, a, a), nil
}

func instance(i *vpcsim.Instance, f Family) (End, error) {
	a, public := i.Addr(), i.PublicIP()
	if f == IPv6 {
		a, public = i.Addr6(), i.Addr6()
	}
	if !a.IsValid() {
		return End{}, fmt.Errorf("%s has no %s address", i.Name, f)
	}
	return end(i.Namespace, a, public), nil
}

func end(n *vpcsim.Namespace, a, outside netip.Addr) End {
	return End{Namespace: n, Addr: netip.AddrPortFrom(a, Port), Outside: outside}
}

// PodOn returns the place of a pod: by the number of its node, the device index of its ENI, and the number of the pod
// on that ENI. The numbers begin with 0. By IPv6, the internet sees the pod's own address. By IPv4, the internet sees
// the node's public address, or the address of the NAT gateway.
func PodOn(node, index, number int) Place {
	return func(s *Scene, f Family) (End, error) {
		n := s.Nodes[node]
		pods := n.On(index)
		if number >= len(pods) {
			return End{}, fmt.Errorf("%s has no pod number %d on eth%d", n.Name, number+1, index)
		}
		p := pods[number]
		a := p.Addr(f)
		switch {
		case !a.IsValid():
			return End{}, fmt.Errorf("%s has no %s address", p.Name, f)
		case f == IPv6:
			return end(p.Namespace, a, a), nil
		case s.options.NAT:
			return end(p.Namespace, a, vpcsim.NATAddr), nil
		}
		return end(p.Namespace, a, n.PublicIP()), nil
	}
}
