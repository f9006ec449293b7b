// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ClusterIPs lists the addresses of a family that kube-proxy translates for a Service of the cluster. It reads the set of
// kube-proxy's nftables mode, and the rules of its iptables mode where iptables(8) is iptables-nft. iptables-legacy is
// another engine, IPVS has neither, and a Service without endpoints has no such rule.
func (n *NS) ClusterIPs(family Family) (addrs []netip.Addr, err error) {
	t := Table{Family: "ip", Name: "kube-proxy"}
	if family == IPv6 {
		t.Family = "ip6"
	}
	elements, err := n.dump(unix.NFT_MSG_GETSETELEM, t.family(),
		attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), attrString(unix.NFTA_SET_ELEM_LIST_SET, "cluster-ips"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: the set cluster-ips of kube-proxy: %w", n.Name, err)
	}
	for _, m := range elements {
		for _, e := range attrsOf(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			if a, ok := netip.AddrFromSlice(inside(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)); ok {
				addrs = append(addrs, a)
			}
		}
	}
	t.Name = "nat"
	rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, "KUBE-SERVICES"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: the chain KUBE-SERVICES of kube-proxy: %w", n.Name, err)
	}
	for _, m := range rules {
		if !bytes.Contains(m, []byte(" cluster IP")) {
			continue // an external address, or the address of a load balancer, say its comments: others have it, too
		}
		if a, ok := destination(m[nl.SizeofNfgenmsg:]); ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil // a rule for each port
}

// destination is the first address with which a rule compares. iptables-nft writes -d behind -p alone, and a protocol is one byte.
func destination(rule []byte) (a netip.Addr, ok bool) {
	for name, data := range expressions(rule) {
		if a, ok = netip.AddrFromSlice(inside(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)); ok && name == "cmp" {
			return a, true
		}
	}
	return a, false
}
