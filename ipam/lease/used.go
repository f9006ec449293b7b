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

// Any process on a node can make namespaces, and give links there any addresses and MAC addresses. So such an address
// is not used. An address is used at a link that can carry it: one that was made on the ENI's link, or the ENI's link
// itself. To make such a link takes the privileges of the node's root. Only the kernel says what a link was made on,
// see [nl.NS.Slaves].
//
// A pod with CAP_NET_ADMIN can give its own link further addresses of the ENI. The kernel refuses those of other pods,
// so such an address is used indeed. The pod can take no more than the ENI has, and of a /80 no more than mostOfPrefix.

// mostOfPrefix is how many IPv6 addresses of one namespace count. An ENI has fewer that are not of a prefix, and an
// interface of a pod has one.
const mostOfPrefix = 64

// routed is the place of an address to which the node has a host route. Its namespace may be
// one that cannot be seen from here.
const routed = "a route of the node"

// TheNode is the place of an address of the node itself. The node may use an address of an ENI for other purposes than
// pods.
const TheNode = "the node"

// An At is an address at the link of an ENI, which has this MAC address. If MAC is "", the node itself has the address,
// or a route to it.
type At struct {
	MAC  string
	Addr netip.Addr
}

// Used is what the kernel shows of the addresses of pods, and of the ENIs that pods have for
// themselves.
type Used struct {
	By      map[At]string       // the path of a namespace that has the address, or another place
	Node    map[netip.Addr]bool // the IPv6 addresses of the node's own links
	Partial bool                // some namespace could not be read: what it has is not known
	Looked  time.Time           // when the look at the kernel began

	links  map[string]nl.Link // the node's, by MAC address
	cards  map[string]bool    // MAC addresses of the network cards in namespaces
	sought bool               // cards were looked for
	owners *owners            // their names
	// by MAC address and path of a namespace that has links on the ENI's link: their IPv6 addresses
	on map[string]int
}

// Of returns where an address of the ENI with this MAC address is in use, or "".
func (u Used) Of(mac string, a netip.Addr) string { return cmp.Or(u.By[At{mac, a}], u.By[At{"", a}]) }

// Has reports whether an address of one of these ENIs, by their MAC addresses, is in use.
func (u Used) Has(a netip.Addr, macs ...string) bool {
	return slices.ContainsFunc(macs, func(mac string) bool { return u.Of(mac, a) != "" })
}

// AtENI reports whether an address is in use at the link of an ENI, or at a slave of that link. The ENI has one of the
// MAC addresses.
func (u Used) AtENI(a netip.Addr, macs ...string) bool {
	return slices.ContainsFunc(macs, func(mac string) bool { return u.By[At{mac, a}] != "" })
}

// Any reports whether an address of the ENI with this MAC address is in use for which has returns true.
func (u Used) Any(mac string, has func(netip.Addr) bool) bool {
	for at := range u.By {
		if (at.MAC == mac || at.MAC == "") && has(at.Addr) {
			return true
		}
	}
	return false
}

// InPod reports whether the link of the ENI with this MAC address is, or may be, in the namespace of a pod. What is on
// the node is in no pod.
func (u Used) InPod(mac string) bool {
	_, here := u.links[mac]
	return !here && (u.cards[mac] || !u.sought)
}

// Holds reports whether a lease without a key still has its pod. Holds returns true if the address is in use. Holds
// also returns true if the namespace where the address was found still has a link on the ENI's link.
func (u Used) Holds(s *registry.State, a netip.Addr, l registry.Lease) bool {
	_, e := s.ENIOf(a)
	on := s.ENIs[l.ENI].MAC
	_, linked := u.on[on+l.NetNS]
	return linked || u.Has(a, on, e.MAC)
}

// UsedAddrs reads the addresses in all network namespaces except the caller's own, which is the node's. UsedAddrs walks
// through the whole node: only a new registry and collections need it. It looks for the links of ENIs in namespaces
// only if the node lacks the link of one of these MAC addresses.
func UsedAddrs(node *nl.NS, macs ...string) Used { return usedIn(Shelves, node, macs) }

func usedIn(shelves []Shelf, node *nl.NS, macs []string) Used {
	used := Used{By: map[At]string{}, Looked: time.Now(), cards: map[string]bool{}, on: map[string]int{},
		owners: &owners{node: node}}
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
			used.add(byIndex[c.Peer], ns.Name, c)
		}
		if !used.sought {
			return nil
		}
		cards, err := ns.CardsOf(kinds...)
		for _, c := range cards {
			if _, here := links[c.MAC]; !here {
				used.cards[c.MAC] = true
				used.add(c.MAC, ns.Name, c)
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
		slog.Warn("the pair of a routed pod has no neighbours, so its address is not known; all addresses count as "+
			"used until repair has put them back or the pod has ended", "link", mute)
		used.Partial = true
	}
	return used
}

// kindsOf returns the kinds of the links that are ENIs. The kernel calls this kind "device": a network card, which only
// root puts into a namespace. Where ENIs are simulated, they are of the kind that the node's own have.
func kindsOf(links map[string]nl.Link, macs []string) []string {
	kinds := []string{nl.RealLink}
	for _, mac := range macs {
		if l, here := links[mac]; here && !slices.Contains(kinds, l.Kind) {
			kinds = append(kinds, l.Kind)
		}
	}
	return kinds
}

// add adds the addresses of a link that was made on the link with a MAC address, or of that link itself.
func (u Used) add(mac, netns string, c nl.Carrier) {
	if mac == "" {
		return
	}
	n := u.on[mac+netns]
	for _, a := range c.Addrs {
		if a.Is6() && !a.IsLinkLocalUnicast() {
			if n++; n > mostOfPrefix {
				continue
			}
		}
		u.By[At{mac, a}] = netns
	}
	u.on[mac+netns] = n
}

// Used is UsedAddrs with the addresses to which the node has a host route. Such a route leads
// to a pod, also to a pod whose namespace cannot be seen from here. The MAC addresses are of ENIs that
// the registry may not have.
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
		used.By[At{"", a}] = routed
	}
	return used
}

// addRouted adds the addresses of routed pods. What a pod says of its own end proves nothing: it can give that end any
// address. But the node has a permanent neighbour at its end for each of the pod's addresses, as long as its end is up.
// An end without one is mute. Another program has set it down, or its ADD has just begun.
func (u Used) addRouted(node *nl.NS) (mute string, err error) {
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
			mute = name
		}
		for _, a := range neighbours[index] {
			u.By[At{"", a}] = routed
		}
	}
	return mute, err
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

// AddNode adds the addresses of the node itself. No pod has them.
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
