// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// rejoin gives the pods of a network back their IPv6 where the node has lost it, and returns
// their names. The kernel has kept none of their addresses, but the registry has them.
func rejoin(host *nl.NS, n paired) (names []string, failed error) {
	state, unread := leases()
	severed, err := n.severed(host, state)
	if len(severed) == 0 || err != nil {
		return nil, err
	}
	if unread != nil {
		return nil, fmt.Errorf("network %s: the node has lost the IPv6 of %d pods, and nobody knows their addresses: %w", n.name, len(severed), unread)
	}
	owners := n.owners(state)
	for _, link := range severed {
		l, leased := owners[link.Name]
		if !leased {
			failed = errors.Join(failed, fmt.Errorf("%s (%s): the node has lost its pod's IPv6, and no lease tells the address: delete the pod", link.Name, link.Alias))
			continue
		}
		if err := n.rejoinOne(state, l); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s (%s): the node has lost its pod's IPv6: %w", link.Name, link.Alias, err))
			continue
		}
		names = append(names, holding{Namespace: l.PodNamespace, Pod: l.PodName, NetNS: l.NetNS, Container: l.ContainerID}.owner())
	}
	return names, failed
}

// severed lists the host ends to whose pods the node has lost the way by IPv6. Of pods without
// a service loop the registry tells which have had one; nil, where it cannot be read, tells none.
func (n paired) severed(host *nl.NS, s *registry.State) ([]nl.Link, error) {
	var owners map[string]registry.Lease
	if s != nil && n.pair.Loopless() {
		owners = n.owners(s)
	}
	return ptp.Severed(host, n.name, func(veth string) bool {
		l, leased := owners[veth]
		return leased && slices.ContainsFunc(s.Held(l.Key), netip.Addr.Is6)
	})
}

// owners are the network's leases by the host ends of their pods.
func (n paired) owners(s *registry.State) map[string]registry.Lease {
	owners := map[string]registry.Lease{}
	for _, l := range s.Leases.All() {
		if l.Network == n.name {
			owners[ptp.HostEnd(n.name, l.Attachment)] = l
		}
	}
	return owners
}

// leases reads the registry.
func leases() (*registry.State, error) {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return nil, err
	}
	return r.View()
}

// rejoinOne gives the pod of a lease back its IPv6.
func (n paired) rejoinOne(s *registry.State, l registry.Lease) error {
	if n.ipam == nil {
		return fmt.Errorf("%s has no %s, which knows the pods' routes", n.file, typeIPAM)
	}
	config, err := decodeIPAM(n.file, n.ipam)
	if err != nil {
		return err
	}
	added, err := lease.Recall(s, l, config)
	if err == nil {
		_, err = ptp.Rejoin(n.name, l.Attachment, l.NetNS, n.pair, added)
	}
	return err
}
