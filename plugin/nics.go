// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// A NIC is one of the pod's interfaces to an ENI, as a CNI result shows it.
type NIC struct {
	Name, MAC string
	IPs       []*types100.IPConfig
}

// NICs returns the NICs that the ADD for the interface ifName has made. The NIC ifName comes first. The interfaces
// after it are further NICs. The list ends before the first interface that is not in the container, or that has no
// address. In a result of the ipam plugin, no interface is in the container. NICs then returns one NIC, with the
// addresses of the first interface and without a MAC address.
func NICs(r *types100.Result, ifName string) []NIC {
	first := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool {
		return i.Name == ifName && i.Sandbox != ""
	})
	if first < 0 {
		return []NIC{{Name: ifName, IPs: ipsOf(r, 0, true)}}
	}
	all := []NIC{{ifName, r.Interfaces[first].Mac, ipsOf(r, first, true)}}
	for at := first + 1; at < len(r.Interfaces); at++ {
		i, ips := r.Interfaces[at], ipsOf(r, at, false)
		if i.Sandbox == "" || len(ips) == 0 {
			break
		}
		all = append(all, NIC{i.Name, i.Mac, ips})
	}
	return all
}

// Several reports whether a result has addresses at several interfaces.
func Several(r *types100.Result) bool {
	return slices.ContainsFunc(r.IPs, func(c *types100.IPConfig) bool { return At(c) != At(r.IPs[0]) })
}

// At returns the index of the interface of an address in a result. Without an index, the address belongs to the first
// interface.
func At(c *types100.IPConfig) int {
	if c.Interface == nil {
		return 0
	}
	return *c.Interface
}

// AtFirst returns the addresses of the first interface. In the result for a routed pod, the first interface is the link
// of the ENI.
func AtFirst(r *types100.Result) []*types100.IPConfig { return ipsOf(r, 0, false) }

// ipsOf returns the addresses of the interface at an index, and if first is true, also those without an index.
func ipsOf(r *types100.Result, at int, first bool) (ips []*types100.IPConfig) {
	for _, c := range r.IPs {
		if c.Interface == nil && first || c.Interface != nil && *c.Interface == at {
			ips = append(ips, c)
		}
	}
	return ips
}

// Addrs returns the addresses of the NIC, each once.
func (n NIC) Addrs() (all []netip.Addr) {
	for _, c := range n.IPs {
		if a, ok := Addr(c.Address.IP); ok && !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// Routed returns the link of a routed pod's ENI. In the result for a routed pod, this link is the first interface, and
// the pod's own interface follows, in the container. In all other results, the first interface is in the container, or
// the container has no interface.
func Routed(r *types100.Result, ifName string) (eni string, is bool) {
	if r == nil || len(r.Interfaces) < 2 || r.Interfaces[0].Sandbox != "" {
		return "", false
	}
	own := r.Interfaces[1]
	return r.Interfaces[0].Name, own.Name == ifName && own.Sandbox != ""
}
