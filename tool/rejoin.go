// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// rejoin gives the pods of a network back their IPv6 where the node has lost it, and returns
// their names. The kernel has kept none of their addresses, but the registry has them.
func rejoin(host *nl.NS, n paired) (names []string, failed error) {
	severed, err := ptp.Severed(host, n.name)
	if len(severed) == 0 || err != nil {
		return nil, err
	}
	state, err := leases()
	if err != nil {
		return nil, fmt.Errorf("network %s: the node has lost the IPv6 of %d pods, and nobody knows their addresses: %w", n.name, len(severed), err)
	}
	owners := map[string]registry.Lease{}
	for _, l := range state.Leases.All() {
		if l.Network == n.name {
			owners[ptp.HostEnd(n.name, l.Attachment)] = l
		}
	}
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
