// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Any process on a node can make network namespaces with links that have any IP addresses and any MAC addresses. So an
// address in a namespace counts as used only if it is on an ENI's link, or on a slave of this link. Only the node's
// root can make a slave, and the kernel shows the slave's master: see [nl.NS.Slaves].
//
// A pod with CAP_NET_ADMIN can add further addresses of the ENI to its own link, if no other pod has them. These
// addresses count as used by this pod. The pod can take no more addresses than the ENI has, and no more than
// mostOfPrefix addresses of a /80.

// mostOfPrefix limits how many IPv6 addresses one namespace can use on one ENI: further addresses do not count as used.
// Without this limit, one pod could use any number of addresses of a /80. A pod needs one IPv6 address for each of its
// interfaces. The limit is also higher than the number of single IPv6 addresses of an ENI.
const mostOfPrefix = 64

// routePlace is the place of an address to which the node has a host route. A pod has this address, perhaps in a
// namespace that this process cannot see.
const routePlace = "a route of the node"

// TheNode is the place of an address that the node itself has. The node may use an address of an ENI for purposes other
// than pods.
const TheNode = "the node"

// An At is an IP address at the link of the ENI with this MAC address. If MAC is "", the node itself has the IP
// address, or a route to it.
type At struct {
	MAC  string
	Addr netip.Addr
}

// Used is the result of a look at the kernel: the addresses in use, and the network cards in the namespaces of pods.
type Used struct {
	By      map[At]string       // the place of each address: routePlace, TheNode, or the path of a namespace
	Node    map[netip.Addr]bool // the IPv6 addresses of the node's own links
	Partial bool                // a namespace could not be read, so its addresses are not known
	Looked  time.Time           // when the look at the kernel began

	links  map[string]nl.Link // the node's links, by MAC address
	cards  map[string]bool    // MAC addresses of the network cards in namespaces
	sought bool               // the namespaces were searched for network cards
	owners *podNames          // finds the names of the pods
	// number of IPv6 addresses of a namespace on an ENI, by the ENI's MAC address and the namespace's path
	addrCount map[string]int
}

// Of returns the place where an address of an ENI is in use, or "" if the address is not in use. The argument mac is
// the MAC address of the ENI.
func (u Used) Of(mac string, a netip.Addr) string { return cmp.Or(u.By[At{mac, a}], u.By[At{"", a}]) }

// Shows reports whether a leased address is in use. The address is in use if AtENI reports so, if the node has a route
// to it, or if the node itself has it.
func (u Used) Shows(s *registry.State, a netip.Addr, l registry.Lease) bool {
	return u.AtENI(s, a, l) || u.By[At{"", a}] != ""
}

// AtENI reports whether a leased address is in use at the link of an ENI, or at a slave of this link. This is the ENI
// that the lease names, or the ENI that has the address now.
func (u Used) AtENI(s *registry.State, a netip.Addr, l registry.Lease) bool {
	if u.By[At{s.ENIs[l.ENI].MAC, a}] != "" {
		return true
	}
	_, e := s.ENIOf(a)
	return u.By[At{e.MAC, a}] != ""
}

// Any reports whether match returns true for a used address. It looks at the addresses of the ENI with this MAC
// address, of the node itself, and of the node's host routes.
func (u Used) Any(mac string, match func(netip.Addr) bool) bool {
	for at := range u.By {
		if (at.MAC == mac || at.MAC == "") && match(at.Addr) {
			return true
		}
	}
	return false
}

// InPod reports whether the link of the ENI with this MAC address is in the namespace of a pod. It also returns true if
// the link is not on the node, and this look has not searched the namespaces for it.
func (u Used) InPod(mac string) bool {
	_, here := u.links[mac]
	return !here && (u.cards[mac] || !u.sought)
}

// Holds reports whether the pod of a lease without a key may still exist. In this case, the address is in use, or the
// namespace of the lease still has the ENI's link or a slave of it.
func (u Used) Holds(s *registry.State, a netip.Addr, l registry.Lease) bool {
	_, linked := u.addrCount[s.ENIs[l.ENI].MAC+l.NetNS]
	return linked || u.Shows(s, a, l)
}

// UsedAddrs reads the addresses in all network namespaces except the caller's own, which is the node's. It takes long
// on a node with many pods. The argument macs has MAC addresses of ENIs. If the link of such an ENI is not on the node,
// UsedAddrs also searches the namespaces for this link.
func UsedAddrs(node *nl.NS, macs ...string) Used { return usedIn(Shelves, node, macs) }

func usedIn(shelves []Shelf, node *nl.NS, macs []string) Used {
	used := Used{By: map[At]string{}, Looked: time.Now(), cards: map[string]bool{}, addrCount: map[string]int{},
		owners: &podNames{node: node}}
	links, err := node.LinksByMAC()
	if err != nil {
		slog.Warn("the node's links cannot be read: all addresses count as used", "error", err)
		used.Partial = true
		return used
	}
	used.links = links
	kinds := kindsOf(links, macs)
	used.sought = slices.ContainsFunc(macs, func(mac string) bool { _, here := links[mac]; return !here })
	byIndex := map[int]string{}
	for mac, l := range links {
		byIndex[l.Index] = mac
	}
	err = eachNetNS(shelves, func(ns *nl.NS) error {
		slaves, err := ns.Slaves(node)
		if err != nil {
			return err
		}
		for _, c := range slaves {
			used.addLink(byIndex[c.Peer], ns.Name, c)
		}
		if !used.sought {
			return nil
		}
		cards, err := ns.CardsOf(kinds...)
		for _, c := range cards {
			if _, here := links[c.MAC]; !here {
				used.cards[c.MAC] = true
				used.addLink(c.MAC, ns.Name, c)
			}
		}
		return err
	})
	if err != nil {
		slog.Warn("some namespaces cannot be read: all addresses count as used", "error", err)
		used.Partial = true
	}
	switch mute, err := used.addRouted(node); {
	case err != nil:
		slog.Warn("the node's neighbours cannot be read: all addresses count as used", "error", err)
		used.Partial = true
	case mute != "":
		slog.Warn("the pair of a routed pod has no neighbours, so the address of this pod is not known; all "+
			"addresses count as used until repair has put the neighbours back, or the pod has ended",
			"link", mute)
		used.Partial = true
	}
	return used
}

// kindsOf returns the kinds of link that an ENI's link can be. The link of a real ENI is a network card
// ([nl.RealLink]), which only root can put into a namespace. In a simulation, the links of ENIs have other kinds.
func kindsOf(links map[string]nl.Link, macs []string) []string {
	kinds := []string{nl.RealLink}
	for _, mac := range macs {
		if l, here := links[mac]; here && !slices.Contains(kinds, l.Kind) {
			kinds = append(kinds, l.Kind)
		}
	}
	return kinds
}

// addLink adds the addresses of the link c in the namespace at the path netns. The link c is the link of the ENI with
// the MAC address mac, or a slave of it.
func (u Used) addLink(mac, netns string, c nl.Carrier) {
	if mac == "" {
		return
	}
	n := u.addrCount[mac+netns]
	for _, a := range c.Addrs {
		if a.Is6() && !a.IsLinkLocalUnicast() {
			if n++; n > mostOfPrefix {
				continue
			}
		}
		u.By[At{mac, a}] = netns
	}
	u.addrCount[mac+netns] = n
}

// Used does what UsedAddrs does, for the ENIs of the registry, and for the ENIs with the MAC addresses macs. It also
// adds the addresses to which the node has a host route. Such a route leads to a pod, perhaps in a namespace that this
// process cannot see.
func (p *Pool) Used(macs ...string) Used {
	if s, err := p.Registry.View(); err == nil {
		macs = append(MACs(s), macs...)
	}
	used := usedIn(p.shelves(), p.Host, macs)
	hosts, err := p.Host.HostRoutes()
	if err != nil {
		slog.Warn("the node's routes cannot be read: all addresses count as used", "error", err)
		used.Partial = true
	}
	addrs, err := p.Host.AllAddrs()
	if err != nil {
		slog.Warn("the node's addresses cannot be read: all addresses count as used", "error", err)
		used.Partial = true
	}
	used.Node = map[netip.Addr]bool{}
	for _, a := range addrs {
		used.Node[a] = a.Is6()
	}
	for _, a := range hosts {
		used.By[At{"", a}] = routePlace
	}
	return used
}

// addRouted adds the addresses of routed pods. A pod can add any address at its end of the pair, so this end proves
// nothing. But while the node's end is up, it has a permanent neighbour for each address of the pod. If a node's end
// has no neighbour, addRouted returns the name of this end. Then the pod's ADD has just begun, or another program has
// set the end down.
func (u Used) addRouted(node *nl.NS) (emptyEnd string, err error) {
	pairs := map[int]string{}
	for _, l := range u.links {
		if nl.IsRouted(l.Group) {
			pairs[l.Index] = l.Name
		}
	}
	if len(pairs) == 0 {
		return "", nil
	}
	neighbours, err := node.Neighbours()
	for index, name := range pairs {
		if len(neighbours[index]) == 0 {
			emptyEnd = name
		}
		for _, a := range neighbours[index] {
			u.By[At{"", a}] = routePlace
		}
	}
	return emptyEnd, err
}

func (p *Pool) shelves() []Shelf {
	if p.Shelves == nil {
		return Shelves
	}
	return p.Shelves
}

// MACs returns the MAC addresses of the ENIs of the registry.
func MACs(s *registry.State) (macs []string) {
	for _, e := range s.ENIs {
		macs = append(macs, e.MAC)
	}
	return macs
}

// AddNode adds the addresses that the node itself has. No pod has them, so AddNode removes other entries for them.
func (u Used) AddNode(addrs []netip.Addr) {
	own := map[netip.Addr]bool{}
	for _, a := range addrs {
		own[a] = true
	}
	maps.DeleteFunc(u.By, func(at At, _ string) bool { return own[at.Addr] })
	for a := range own {
		u.By[At{"", a}] = TheNode
	}
}
