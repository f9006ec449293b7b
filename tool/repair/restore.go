// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// IPv6 puts back the IPv6 of a network's pods where the node has lost it, and returns what that was.
// The kernel has kept none of their addresses, but the registry has them.
func IPv6(_ context.Context, host *nl.NS, n conf.Network) (did []string, failed error) {
	state, unread := leases()
	lost, err := WithoutIPv6(host, n, state)
	if len(lost) == 0 || err != nil {
		return nil, err
	}
	if unread != nil {
		return nil, fmt.Errorf("network %s: the node has lost the IPv6 of %d pods, and without the registry nobody knows their addresses: %w", n.Name, len(lost), unread)
	}
	owners := owners(n, state)
	for _, link := range lost {
		l, leased := owners[link.Name]
		if !leased {
			failed = errors.Join(failed, fmt.Errorf("%s (%s): the node has lost its pod's IPv6, and the registry has no lease with the address: delete the pod", link.Name, link.Alias))
			continue
		}
		if err := restore(host, n, state, l); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s (%s): the node has lost its pod's IPv6: %w", link.Name, link.Alias, err))
			continue
		}
		did = append(did, "IPv6 of "+view.Owner(l))
		slog.Info("put back what the node has lost of a pod's IPv6", "pod", view.Owner(l))
	}
	return did, failed
}

// WithoutIPv6 lists the host ends of pods to which the node has no route by IPv6 any more. For a pod
// without a service loop, only the registry knows whether it had one: a state of nil reports none of these.
func WithoutIPv6(host *nl.NS, n conf.Network, s *registry.State) ([]nl.Link, error) {
	var leases map[string]registry.Lease
	if s != nil && n.Pair.Loopless() {
		leases = owners(n, s)
	}
	return ptp.Disconnected(host, n.Name, func(veth string) bool {
		l, leased := leases[veth]
		return leased && slices.ContainsFunc(s.HeldBy(l.Key, 0), netip.Addr.Is6)
	})
}

// owners are the network's leases by the host ends of their pods.
func owners(n conf.Network, s *registry.State) map[string]registry.Lease {
	owners := map[string]registry.Lease{}
	for _, l := range s.Leases.All() {
		if l.Network == n.Name && l.NIC == 0 { // a further interface has no pair
			owners[ptp.VethName(n.Name, l.Attachment)] = l
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

// recall is what the ADD of a lease was told by ipam.
func recall(n conf.Network, s *registry.State, l registry.Lease) (*types100.Result, error) {
	if n.IPAM == nil {
		return nil, fmt.Errorf("%s has no %s, which knows the pods' routes", n.File, conf.TypeIPAM)
	}
	config, err := conf.Decode(n.File, n.IPAM)
	if err != nil {
		return nil, err
	}
	return lease.Recall(s, l, config)
}

// restore puts back the IPv6 of a lease's pod.
func restore(host *nl.NS, n conf.Network, s *registry.State, l registry.Lease) error {
	added, err := recall(n, s, l)
	if err == nil {
		_, err = ptp.Restore(host, n.Name, l.Attachment, l.NetNS, n.Pair, added)
	}
	return err
}
