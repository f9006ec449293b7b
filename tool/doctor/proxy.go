// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// checkProxy looks for Services that pods do not reach because of the mode of kube-proxy or the pods' routes. It also
// looks for Services whose packets should enter the tunnel of an egress, but do not (see pastTunnels).
func (p *Node) checkProxy(context.Context) (found []Finding, failed error) {
	found, failed = p.checkIPVS()
	networks, _ := p.conflists.Networks() // checkConfig reports mistakes in networks
	for _, n := range networks {
		if n.Pair.IPMasq {
			lost, err := p.servicesByENI(n)
			found, failed = append(found, lost...), errors.Join(failed, err)
		}
	}
	past, err := p.pastTunnels()
	return append(found, past...), errors.Join(failed, err)
}

// checkIPVS looks for the link that kube-proxy makes in IPVS mode. A routing rule sends a packet from a pod's veth back
// into the pod, and the pod sends the packet by its ENI. But IPVS routes a rewritten packet as if the node had sent the
// packet, so the rule does not match. If the backend is a pod of this node, the backend gets the packet by a veth, but
// answers by an ENI. So the answer does not reach the node's IPVS.
func (p *Node) checkIPVS() ([]Finding, error) {
	const link = "kube-ipvs0"
	_, err := p.kernel.LinkByName(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []Finding{{Severity: warning, About: link, Means: "kube-proxy is or was in IPVS mode. Pods do not reach " +
		"Services whose backend is a pod of this node. With masqueradeAll, pods reach such Services, but backends " +
		"see the node's address",
		Do: "run kube-proxy in nftables or iptables mode (docs/install.md). If kube-proxy is in one of these modes " +
			"already, run: ip link del " + link}}, err
}

// servicesByENI looks for Services to which the pods of a network send packets by their ENIs. The VPC does not know
// Services, so these packets get no answer.
func (p *Node) servicesByENI(n conf.Network) (found []Finding, err error) {
	if n.IPAM == nil {
		// Another plugin gives the addresses. Or ipam's configuration has a mistake, which checkConfig reports.
		return nil, nil
	}
	policy := n.IPAM.Policies()[0]
	lost := map[netip.Prefix][]netip.Addr{} // key: a destination by the ENI; value: the Services' addresses in it
	for _, family := range policy.Families {
		services, err := p.kernel.ClusterIPs(family)
		if err != nil {
			return nil, err
		}
		for _, a := range services {
			byENI, byNode := narrowestPrefix(p.eniDestinations(policy, n.Pair), a), narrowestPrefix(n.Pair.ByNode(), a)
			if byENI.IsValid() && byENI.Bits() > byNode.Bits() {
				lost[byENI] = append(lost[byENI], a)
			}
		}
	}
	for _, dst := range slices.SortedFunc(maps.Keys(lost), netip.Prefix.Compare) {
		services := lost[dst]
		found = append(found, Finding{Severity: severe, About: fmt.Sprintf("network %s: %s in %v, for example %v",
			n.Name, cli.Count(len(services), "ClusterIP"), dst, services[0]),
			Means: fmt.Sprintf("pods send packets to %v through the pods' ENIs, but the VPC does not know Services. "+
				"So Services with a ClusterIP in this range do not answer. DNS may be one of these Services", dst),
			Do: fmt.Sprintf("add the CIDR of the cluster's Services (--service-cluster-ip-range of the "+
				"kube-apiserver) to hostCidrs in %s. Running pods keep their old routes, so delete the running pods",
				n.File)})
	}
	return found, nil
}

// pastTunnels looks for Services with an endpoint that is a destination of an egress. The node changes the ClusterIP of
// a client's packet to the endpoint's address. Only the client has the tunnel, so the packet leaves the node outside
// the tunnel.
func (p *Node) pastTunnels() (found []Finding, err error) {
	networks, _ := p.conflists.Egress() // checkConfig reports mistakes in networks
	if len(networks) == 0 {
		return nil, nil
	}
	var endpoints []netip.Addr
	for _, f := range nl.Families {
		of, err := p.kernel.ServiceEndpoints(f)
		if err != nil {
			return nil, err
		}
		endpoints = append(endpoints, of...)
	}
	for _, n := range networks {
		own := p.ownRoutes(n.List.Name)
		for _, name := range slices.Sorted(maps.Keys(n.Egresses)) {
			past := slices.DeleteFunc(slices.Clone(endpoints), func(a netip.Addr) bool {
				d, tunnelled := n.Egresses[name].Tunnels(a)
				return !tunnelled || narrowestPrefix(own, a).Bits() >= d.Bits()
			})
			if len(past) > 0 {
				found = append(found, Finding{Severity: warning,
					About: fmt.Sprintf("egress %s: its destinations have %s of Services, for example %v", name,
						cli.Count(len(past), "endpoint"), past[0]),
					Means: "a client that calls a Service with such an endpoint bypasses the tunnel. By IPv4, the " +
						"endpoint sees the address of the client's node, and by IPv6 the client's own address",
					Do: "give clients the endpoint's own address or name (kubectl get endpointslices -A shows the " +
						"Service). If clients may bypass the tunnel, add the endpoint's address to the key " +
						"\"except\" of the egress"})
			}
		}
	}
	return found, nil
}

// ownRoutes returns the destinations for which pods of a network have routes. It leaves out the default routes.
func (p *Node) ownRoutes(network string) (all []netip.Prefix) {
	networks, _ := p.conflists.Networks()
	for _, n := range networks {
		if n.Name != network || n.IPAM == nil {
			continue // another plugin gives the addresses, or checkConfig finds the mistake
		}
		all = append(p.eniDestinations(n.IPAM.Policies()[0], n.Pair), n.Pair.ByNode()...)
	}
	return slices.DeleteFunc(all, func(p netip.Prefix) bool { return p.Bits() == 0 })
}

// eniDestinations returns the destinations that pods of a network reach by their ENI.
func (p *Node) eniDestinations(policy lease.Policy, pair ptp.Config) []netip.Prefix {
	all := slices.Clone(policy.Routes)
	for _, v := range p.state.VPCs {
		all = slices.Concat(all, v.CIDRs, v.CIDRs6)
		if policy.Peers {
			all = append(all, v.Peers...)
		}
	}
	if pair.DefaultRoute == "vpc" {
		all = append(all, netip.MustParsePrefix("0.0.0.0/0"))
	}
	return append(all, netip.MustParsePrefix("::/0"))
}

// narrowestPrefix returns the longest prefix that contains the address. If no prefix contains it, the result is the
// zero prefix, whose Bits method returns -1.
func narrowestPrefix(prefixes []netip.Prefix, a netip.Addr) (longest netip.Prefix) {
	for _, p := range prefixes {
		if p.Contains(a) && p.Bits() > longest.Bits() {
			longest = p
		}
	}
	return longest
}
