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

// ClusterIPs lists the addresses of a family that kube-proxy translates for a Service of the cluster. ClusterIPs reads
// the set of kube-proxy's nftables mode. It also reads the rules of the iptables mode, where iptables(8) is
// iptables-nft. It does not see the rules of iptables-legacy, which is another engine. In the IPVS mode, there is
// neither the set nor the rules. There is also no rule for a Service without endpoints.
func (n *NS) ClusterIPs(family Family) (addrs []netip.Addr, err error) {
	t := proxyTable(family, "kube-proxy")
	elements, err := t.elements(n, "cluster-ips")
	if err != nil {
		return nil, err
	}
	for _, e := range elements {
		if a, ok := netip.AddrFromSlice(inside(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)); ok {
			addrs = append(addrs, a)
		}
	}
	t.Name = "nat"
	rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, "KUBE-SERVICES"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: read kube-proxy's chain KUBE-SERVICES: %w", n.Name, err)
	}
	for _, m := range rules {
		if !bytes.Contains(m, []byte(" cluster IP")) {
			continue // the comment is of an external address or of a load balancer: hosts outside may have it
		}
		if a, ok := destination(m[nl.SizeofNfgenmsg:]); ok {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil // there is a rule for each port
}

// ServiceEndpoints lists the addresses of a family to which kube-proxy sends the calls to Services. ServiceEndpoints
// reads the rules of the same modes as [NS.ClusterIPs].
func (n *NS) ServiceEndpoints(family Family) (addrs []netip.Addr, err error) {
	// in the table nat, other programs also have rules that translate
	for table, chains := range map[string]string{"kube-proxy": "", "nat": "KUBE-SEP-"} {
		t := proxyTable(family, table)
		rules, err := t.rules(n)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: read kube-proxy's rules in the table %s: %w", n.Name, table, err)
		}
		for _, m := range rules {
			rule := m[nl.SizeofNfgenmsg:]
			if !bytes.HasPrefix(inside(rule, unix.NFTA_RULE_CHAIN), []byte(chains)) {
				continue
			}
			values, err := t.translations(n, rule)
			if err != nil {
				return nil, err
			}
			for _, v := range values {
				if a, ok := family.first(v); ok {
					addrs = append(addrs, a)
				}
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), nil
}

// translations returns the values to which a rule translates a destination. Each value begins with the address. A rule
// of nft(8) loads the value into a register, or takes the value from a map. A rule of iptables-nft has the target DNAT
// with a struct nf_nat_range2, in which the address comes after the flags.
func (t Table) translations(n *NS, rule []byte) (values [][]byte, err error) {
	set := ""
	for name, data := range expressions(rule) {
		switch name {
		case "immediate":
			values = append(values, inside(data, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VALUE))
		case "lookup":
			set = unix.ByteSliceToString(inside(data, unix.NFTA_LOOKUP_SET))
		case "nat":
			if set == "" {
				return values, nil
			}
			elements, err := t.elements(n, set)
			for _, e := range elements {
				values = append(values, inside(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VALUE))
			}
			return values, err
		case "target":
			if info := inside(data, unix.NFTA_TARGET_INFO); unix.ByteSliceToString(inside(data,
				unix.NFTA_TARGET_NAME)) == "DNAT" && len(info) > 4 {
				return [][]byte{info[4:]}, nil
			}
		}
	}
	return nil, nil // the rule translates nothing
}

// elements returns the elements of a set, or none if the set does not exist.
func (t Table) elements(n *NS, set string) (all [][]byte, err error) {
	dumped, err := n.dump(unix.NFT_MSG_GETSETELEM, t.family(),
		attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name), attrString(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: read the set %s of the table %s: %w", n.Name, set, t.Name, err)
	}
	for _, m := range dumped {
		for _, e := range attrsOf(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			all = append(all, e)
		}
	}
	return all, nil
}

// first returns the address with which b begins.
func (f Family) first(b []byte) (a netip.Addr, ok bool) {
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

// destination returns the first address with which a rule compares a packet. In a rule of iptables-nft, only the
// comparison of the protocol (-p) comes before the comparison of the destination (-d). A protocol has one byte.
func destination(rule []byte) (a netip.Addr, ok bool) {
	for name, data := range expressions(rule) {
		if a, ok = netip.AddrFromSlice(inside(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)); ok && name == "cmp" {
			return a, true
		}
	}
	return a, false
}
