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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// checkProxy looks for Services that pods do not reach, by the mode of kube-proxy, or by their routes.
func (p *Node) checkProxy(context.Context) (found []Finding, failed error) {
	found, failed = p.ipvs()
	networks, _ := conf.Networks(p.given) // checkConfig finds what is wrong with one
	for _, n := range networks {
		if n.Pair.IPMasq {
			lost, err := p.servicesByENI(n)
			found, failed = append(found, lost...), errors.Join(failed, err)
		}
	}
	return found, failed
}

// ipvs looks for kube-proxy's IPVS mode, by its link. IPVS routes a packet that it has
// rewritten again, as if the node had sent it. So the packet does not match the pod's rule. A
// backend beside the pod gets it from the veth, and answers by its ENI.
func (p *Node) ipvs() ([]Finding, error) {
	const link = "kube-ipvs0"
	_, err := p.pool.Host.LinkByName(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []Finding{{Severity: warning, About: link, Means: "kube-proxy is or was in IPVS mode: pods do not reach Services whose backend is a pod of this node, unless masqueradeAll is set; and backends see the node's address",
		Do: "run kube-proxy in nftables or iptables mode (docs/install.md). If it is in one of these modes already: ip link del " + link}}, err
}

// servicesByENI looks for Services that pods of a network call by their ENI. The VPC knows no Service, so nobody answers.
func (p *Node) servicesByENI(n conf.Network) (found []Finding, err error) {
	config, err := conf.Decode(n.File, n.IPAM)
	if n.IPAM == nil || err != nil {
		return nil, nil // another plugin gives the addresses, or checkConfig finds the mistake
	}
	policy := config.Policies()[0]
	lost := map[netip.Prefix][]netip.Addr{} // by the destination that has the address
	for _, family := range policy.Families {
		services, err := p.pool.Host.ClusterIPs(family)
		if err != nil {
			return nil, err
		}
		for _, a := range services {
			byENI, byNode := narrowest(p.byENI(policy, n.Pair), a), narrowest(n.Pair.ByNode(), a)
			if byENI.IsValid() && byENI.Bits() > byNode.Bits() {
				lost[byENI] = append(lost[byENI], a)
			}
		}
	}
	for _, dst := range slices.SortedFunc(maps.Keys(lost), netip.Prefix.Compare) {
		services := lost[dst]
		found = append(found, Finding{Severity: severe, About: fmt.Sprintf("network %s: %d ClusterIPs in %v, %v for example", n.Name, len(services), dst, services[0]),
			Means: fmt.Sprintf("pods send packets to %v by their ENI, and the VPC knows no Service: these Services do not answer, and DNS may be one", dst),
			Do:    fmt.Sprintf("name the CIDR of the cluster's Services in hostCidrs (%s): the kube-apiserver's --service-cluster-ip-range. Pods that run keep their routes until they are made again", n.File)})
	}
	return found, nil
}

// byENI are the destinations that pods of a network reach by their ENI.
func (p *Node) byENI(policy lease.Policy, pair ptp.Config) []netip.Prefix {
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

// narrowest is the longest prefix that has the address. It is none, with -1 bits, if no prefix has it.
func narrowest(prefixes []netip.Prefix, a netip.Addr) (longest netip.Prefix) {
	for _, p := range prefixes {
		if p.Contains(a) && p.Bits() > longest.Bits() {
			longest = p
		}
	}
	return longest
}
