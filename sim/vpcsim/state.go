// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// State returns one line for each object that a plugin could leave behind in a namespace: links, addresses, routes,
// rules and nftables. It omits sysctls, because plugins do not reset them: other programs may rely on the new values.
func State(n *nl.NS) ([]string, error) {
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
	var s []string
	for _, l := range links {
		s = append(s, l.String())
	}
	for _, a := range addrs {
		if !isKernelMade(a.Prefix) {
			s = append(s, a.String())
		}
	}
	for _, r := range routes {
		if !isKernelMade(r.Dst) {
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

// isKernelMade reports whether the kernel itself adds addresses and routes with this prefix, at times that a test
// cannot predict.
func isKernelMade(p netip.Prefix) bool {
	a := p.Addr()
	return a.Is6() && (a.IsLinkLocalUnicast() || a.IsMulticast())
}
