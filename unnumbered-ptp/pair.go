// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"cmp"
	"encoding/hex"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// A pair is the veth pair of a pod, with facts on which the pair's objects depend.
type pair struct {
	veth    nl.Veth
	addrs   []netip.Addr
	mtu     int    // of the pod's link to the VPC
	loop    string // the pod's service loop: "redirect", "masquerade" or "none"; "" if the node does not forward
	fresh   bool   // this ADD has made the pair
	callers bool   // the pod answers through the veth if the call came through the veth, see nodeport.go
	routed  bool   // the pod has no other link, see routed.go
	unnamed bool   // another program has removed the alternative name, see engine.go
}

func newPair(s *scene) pair {
	near, far := macs(s.Network, s.Attachment)
	p := pair{
		veth: nl.Veth{
			Name: VethName(s.Network, s.Attachment), MAC: near,
			Peer: s.Config.ContainerInterface, PeerMAC: far, PeerNS: s.podNS, PeerGroup: nl.PodGroup(s.Digest()),
			MTU: cmp.Or(s.Config.MTU, s.node.mtu), Group: nl.OwnGroup, Alias: alias(s.request),
			NoLinkLocal: true, NoRA: true, NoRedirects: true, Forwards: s.Config.IPMasq,
		},
		addrs:   s.addrs,
		mtu:     s.podMTU,
		callers: s.Config.KeepCaller,
	}
	if s.isRoutedPod() {
		p.makeRouted(s)
	}
	return p
}

// pair returns the pod's pair as ADD makes it. If the kernel does not answer, exists is true. An existing pair keeps
// its name when the configuration changes. Without the key "mtu", an existing pair also keeps its MTU when the MTU of
// hostInterface changes.
func (s *scene) pair() (p pair, exists bool) {
	p = newPair(s)
	own := cmp.Or(p.veth.AltName, p.veth.Name)
	l, err := s.nodeNS.LinkByName(own)
	if err == nil && s.Config.MTU == 0 {
		p.veth.MTU = l.MTU
	}
	if err == nil {
		p.setName(l.Name, own)
	}
	return p, !errors.Is(err, fs.ErrNotExist)
}

// findPair is like pair, but also finds a routed pod's pair that has lost its alternative name.
func (s *scene) findPair() (p pair, exists bool) {
	if p, exists = s.pair(); exists || !p.routed {
		return p, exists
	}
	links, err := s.nodeNS.Links()
	near, exists := NearOf(links, s.Network, s.Attachment)
	if !exists {
		return p, err != nil
	}
	p.setName(near.Name, cmp.Or(p.veth.AltName, p.veth.Name))
	p.unnamed = true
	if s.Config.MTU == 0 {
		p.veth.MTU = near.MTU
	}
	return p, true
}

// NearOf finds the node's end of an attachment's pair in a list of links. It finds the end by the name or alternative
// name that follows from the attachment. If another program has removed this name, it finds the end by its MAC address.
func NearOf(links []nl.Link, network string, a plugin.Attachment) (near nl.Link, is bool) {
	name := VethName(network, a)
	mac, _ := macs(network, a)
	i := slices.IndexFunc(links, func(l nl.Link) bool {
		return slices.Contains(l.Names(), name) ||
			l.Kind == "veth" && l.MAC == mac && networkInAlias(l.Alias) == network && nl.IsPair(l.Group)
	})
	if i < 0 {
		return nl.Link{}, false
	}
	return links[i], true
}

func (p pair) hasFamily(f nl.Family) bool { return nl.FirstAddr(p.addrs, f).IsValid() }

func (p pair) families() []nl.Family {
	return slices.DeleteFunc(slices.Clone(nl.Families), func(f nl.Family) bool { return !p.hasFamily(f) })
}

// dstsByNode returns the prefixes of hostCidrs in the pod's families. The pod reaches these prefixes through the node.
func (p pair) dstsByNode(c Config) (all []netip.Prefix) {
	for _, dst := range c.hostCIDRs {
		if p.hasFamily(nl.FamilyOf(dst.Addr())) {
			all = append(all, dst)
		}
	}
	return all
}

const owner = "cni-ipvlan-vpc-k8s"

// VethName returns the name of the node's end of an attachment's veth pair, or the alternative name of this end, see
// engine.go. kube2iam and other programs recognize the links of pods by the prefix "veth".
func VethName(network string, a plugin.Attachment) string {
	return ("veth" + hex.EncodeToString(plugin.Digest(network, a)))[:unix.IFNAMSIZ-1]
}

// macs returns the MAC addresses of the node's end and of the pod's end. They are locally administered, and follow from
// the attachment.
func macs(network string, a plugin.Attachment) (near, far string) {
	end := net.HardwareAddr(plugin.Digest(network, a)[:6])
	end[0] = end[0]&^1 | 2
	end[5] &^= 1
	near = end.String()
	end[5] |= 1
	return near, end.String()
}

// alias returns the alias of the node's end, for people and for GC: our name, the network, the container ID, the
// interface, and the pod if the pod is known.
func alias(r *request) string {
	words := []string{owner, r.Network, r.ContainerID, r.IfName}
	if p := r.Pod.String(); p != "" {
		words = append(words, p)
	}
	const most = 255 // IFALIASZ-1
	s := strings.Join(words, " ")
	return s[:min(len(s), most)]
}

// networkInAlias returns the network in an alias of ours, or "" for any other alias.
func networkInAlias(alias string) string {
	words := strings.SplitN(alias, " ", 3)
	if len(words) < 3 || words[0] != owner {
		return ""
	}
	return words[1]
}
