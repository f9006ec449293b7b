// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// LinkNames returns the names of the node's links by MAC address. If several links have the same MAC address, the name
// is that of the link on which the other links were made. This link is the oldest, so it has the lowest index.
func LinkNames() (map[string]string, error) {
	links, err := net.Interfaces() // package nl would need root for its socket
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	slices.SortFunc(links, func(a, b net.Interface) int { return cmp.Compare(b.Index, a.Index) })
	names := map[string]string{}
	for _, l := range links {
		names[l.HardwareAddr.String()] = l.Name
	}
	delete(names, "") // lo
	return names, nil
}

// ENILinks returns the names of the links of all ENIs in the registry, by MAC address. The kernel needs much time to
// list the links of all pods. So ENILinks asks only for the links whose names the registry has (see [nl.NS.LinksOf]).
func ENILinks(s *registry.State) (map[string]string, error) {
	node, err := nl.Node()
	if err != nil {
		return nil, err
	}
	defer node.Close()
	names := map[string]string{}
	for _, e := range s.ENIs {
		if e.Link != "" {
			names[e.MAC] = e.Link
		}
	}
	links, err := node.LinksOf(names)
	found := map[string]string{}
	for mac := range names {
		if l, here := links[mac]; here {
			found[mac] = l.Name
		}
	}
	return found, err
}

// An Addr is an address that a link has.
type Addr struct {
	Iface string     `json:"iface"`
	Addr  netip.Addr `json:"ip"`
	NetNS string     `json:"netns" head:"-"` // path of the namespace; empty on the node itself
}

// Addrs lists the IPv4 addresses that links of a namespace have.
func Addrs(ns *nl.NS, path string) ([]Addr, error) {
	addrs, err := ns.Addrs("")
	var rows []Addr
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() {
			rows = append(rows, Addr{a.Dev, a.Prefix.Addr(), path})
		}
	}
	return rows, err
}
