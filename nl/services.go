// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// ClusterIPs lists the cluster IPs of Services, from the tables of kube-proxy. It knows kube-proxy's mode "nftables",
// and the mode "iptables" with iptables-nft. With iptables-legacy or IPVS, it finds nothing. In the mode "iptables", it
// finds only Services that have endpoints.
func (n *NS) ClusterIPs(family Family) (addrs []netip.Addr, err error) {
	t := proxyTable(family, "kube-proxy")
	elements, err := t.setElements(n, "cluster-ips")
	if err != nil {
		return nil, err
	}
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(attrAt(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)); ok {
			addrs = append(addrs, a)
		}
	}
	t.Name = "nat"
	rules, err := t.listRules(n, attrString(unix.NFTA_RULE_CHAIN, "KUBE-SERVICES"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: read kube-proxy's chain KUBE-SERVICES: %w", n.Name, err)
	}
	for _, m := range rules {
		if !bytes.Contains(m, []byte(" cluster IP")) {
			continue // the rule is for an external IP or a load balancer, perhaps outside the cluster
		}
		if a, ok := comparedAddr(m[nl.SizeofNfgenmsg:]); ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil // addrs has an address twice if its Service has two ports
}

// ServiceEndpoints lists the addresses of the Services' endpoints, from the rules of kube-proxy. It knows the same
// modes of kube-proxy as [NS.ClusterIPs].
func (n *NS) ServiceEndpoints(family Family) (addrs []netip.Addr, err error) {
	// from the table "nat", take only kube-proxy's chains: other programs have DNAT rules there, too
	for table, chains := range map[string]string{"kube-proxy": "", "nat": "KUBE-SEP-"} {
		t := proxyTable(family, table)
		rules, err := t.listRules(n)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: read kube-proxy's rules in the table %s: %w", n.Name, table, err)
		}
		for _, m := range rules {
			rule := m[nl.SizeofNfgenmsg:]
			if !bytes.HasPrefix(attrAt(rule, unix.NFTA_RULE_CHAIN), []byte(chains)) {
				continue
			}
			values, err := t.natTargets(n, rule)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				if a, ok := family.firstAddr(v); ok {
					addrs = append(addrs, a)
				}
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// natTargets returns the new destinations that a NAT rule gives to packets. Each destination begins with an address. A
// rule of nft(8) loads the destination into a register, or takes it from a map. A rule of iptables-nft has a struct
// nf_nat_range2, in which the address comes after the flags.
func (t Table) natTargets(n *NS, rule []byte) (values [][]byte, err error) {
	set := ""
	for name, data := range expressions(rule) {
		switch name {
		case "immediate":
			values = append(values, attrAt(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE))
		case "lookup":
			set = unix.ByteSliceToString(attrAt(data, unix.NFTA_LOOKUP_SET))
		case "nat":
			if set == "" {
				return values, nil
			}
			elements, err := t.setElements(n, set)
			for _, e := range elements {
				values = append(values, attrAt(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
			}
			return values, err
		case "target":
			if info := attrAt(data, unix.NFTA_TARGET_INFO); unix.ByteSliceToString(attrAt(data,
				unix.NFTA_TARGET_NAME)) == "DNAT" && len(info) > 4 {
				return [][]byte{info[4:]}, nil
			}
		}
	}
	return nil, nil // the rule does not translate a destination
}

// setElements returns the elements of a set or map, or none if the set does not exist.
func (t Table) setElements(n *NS, set string) (all [][]byte, err error) {
	dumped, err := n.dumpObjects(unix.NFT_MSG_GETSETELEM, t.family(),
		attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), attrString(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: read the set %s of the table %s: %w", n.Name, set, t.Name, err)
	}
	for _, m := range dumped {
		for _, e := range attrsOf(attrAt(m[nl.SizeofNfgenmsg:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			all = append(all, e)
		}
	}
	return all, nil
}

func (f Family) firstAddr(b []byte) (a netip.Addr, ok bool) {
	size := net.IPv4len
	if f == IPv6 {
		size = net.IPv6len
	}
	if len(b) < size {
		return a, false
	}
	return netip.AddrFromSlice(b[:size])
}

func proxyTable(family Family, name string) Table {
	if family == IPv6 {
		return Table{Family: "ip6", Name: name}
	}
	return Table{Family: "ip", Name: name}
}

// comparedAddr returns the first value that a rule compares with a packet, and that has the size of an address. In
// kube-proxy's rules of iptables-nft, this is the destination (-d). Before the destination, these rules compare only
// the protocol (-p), which has one byte.
func comparedAddr(rule []byte) (a netip.Addr, ok bool) {
	for name, data := range expressions(rule) {
		if a, ok = netip.AddrFromSlice(attrAt(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)); ok && name == "cmp" {
			return a, true
		}
	}
	return a, false
}
