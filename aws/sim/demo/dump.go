// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A state is everything that a plugin could leave behind in a namespace, as lines. Sysctls are not included, because
// other programs may rely on them by now.
type state []string

// dump reads the states of the nodes.
func (s *scene) dump() ([]state, error) {
	var all []state
	for _, n := range s.Nodes {
		d, err := dump(n.NS)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

func dump(n *nl.NS) (state, error) {
	links, err := n.Links()
	if err != nil {
		return nil, err
	}
	addrs, err := n.Addrs("")
	if err != nil {
		return nil, err
	}
	routes, err := n.Routes(nl.RouteFilter{})
	if err != nil {
		return nil, err
	}
	rules, err := n.Rules()
	if err != nil {
		return nil, err
	}
	tables, err := n.Tables()
	if err != nil {
		return nil, err
	}
	var s state
	for _, l := range links {
		s = append(s, l.String())
	}
	for _, a := range addrs {
		if !own(a.Prefix) {
			s = append(s, a.String())
		}
	}
	for _, r := range routes {
		if !own(r.Dst) {
			s = append(s, r.String())
		}
	}
	for _, r := range rules {
		s = append(s, r.String())
	}
	for _, t := range tables {
		s = append(s, "nft add table "+t)
	}
	return s, nil
}

// own reports whether the kernel adds the address by itself, at a time of its choice: link-local addresses of IPv6.
func own(p netip.Prefix) bool {
	a := p.Addr()
	return a.Is6() && (a.IsLinkLocalUnicast() || a.IsMulticast())
}

// without returns the lines of s that other does not have.
func (s state) without(other state) state {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return slices.Contains(other, line) })
}

// differ returns an error with the lines that should not be there, and those that are missing.
func differ(left, gone state) error {
	var lines []string
	for _, l := range left {
		lines = append(lines, "left: "+l)
	}
	for _, l := range gone {
		lines = append(lines, "gone: "+l)
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("it differs\n%s", strings.Join(lines, "\n"))
}
