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
	*vpcsim.Namespace // nil: the end is a Service, which makes no calls itself
	Addr              netip.AddrPort
	Outside           netip.Addr // the address of the end as the internet sees it

	backends []*vpcsim.Namespace // the backends of a Service; each can get a call
}

// A Place returns an end of a path in a scene. The scene must already have its pods.
type Place func(*Scene, Family) (End, error)

// A Sight returns the source address that the receiver must see in packets from an end.
type Sight func(s *Scene, f Family, from End) (netip.Addr, error)

// Itself is a [Sight] for packets that keep the sender's own address.
func Itself(_ *Scene, _ Family, from End) (netip.Addr, error) { return from.Addr.Addr(), nil }

func seenFromOutside(_ *Scene, _ Family, from End) (netip.Addr, error) { return from.Outside, nil }

// seenAs returns a Sight for packets whose source address the node has translated. The receiver must see the address of
// the end at p.
func seenAs(p Place) Sight {
	return func(s *Scene, f Family, _ End) (netip.Addr, error) {
		e, err := p(s, f)
		return e.Addr.Addr(), err
	}
}

// The device indices of the ENIs that serve pods.
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

func node1(s *Scene, f Family) (End, error)  { return instanceEnd(s.Nodes[0].Instance, f) }
func node2(s *Scene, f Family) (End, error)  { return instanceEnd(s.Nodes[1].Instance, f) }
func host(s *Scene, f Family) (End, error)   { return otherHost(s, "host", f) }
func peer(s *Scene, f Family) (End, error)   { return otherHost(s, "peer", f) }
func second(s *Scene, f Family) (End, error) { return otherHost(s, "second", f) }
func office(s *Scene, f Family) (End, error) { return otherHost(s, "office", f) }

func otherHost(s *Scene, name string, f Family) (End, error) {
	i, ok := s.others[name]
	if !ok {
		return End{}, fmt.Errorf("the scene has no %s: its Options are not for the further paths", name)
	}
	return instanceEnd(i, f)
}

func internet(s *Scene, f Family) (End, error) {
	a := vpcsim.InternetAddr
	if f == IPv6 {
		a = vpcsim.InternetAddr6
	}
	return newEnd(s.Internet, a, a), nil
}

func instanceEnd(i *vpcsim.Instance, f Family) (End, error) {
	a, public := i.Addr(), i.PublicIP()
	if f == IPv6 {
		a, public = i.Addr6(), i.Addr6()
	}
	if !a.IsValid() {
		return End{}, fmt.Errorf("%s has no %s address", i.Name, f)
	}
	return newEnd(i.Namespace, a, public), nil
}

func newEnd(n *vpcsim.Namespace, a, outside netip.Addr) End {
	return End{Namespace: n, Addr: netip.AddrPortFrom(a, Port), Outside: outside}
}

// PodOn returns the place of a pod. The argument "node" is the number of the pod's node, and "number" is the pod's
// number on its ENI. Both numbers count from 0. The argument "index" is the device index of the ENI. The internet sees
// IPv6 packets from the pod's own address. The internet sees IPv4 packets from the node's public address, or from the
// NAT gateway's public address.
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
			return newEnd(p.Namespace, a, a), nil
		case s.options.NAT:
			return newEnd(p.Namespace, a, vpcsim.NATAddr), nil
		}
		return newEnd(p.Namespace, a, n.PublicIP()), nil
	}
}
