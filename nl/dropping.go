// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A DroppingChain is a chain at netfilter's hook forward or prerouting. At forward, the chain drops or rejects a packet
// that none of its rules accepts. At prerouting, it drops a packet whose source has no route by the link by which the
// packet has arrived.
type DroppingChain struct {
	Name   string // as nft(8) writes it: "ip filter FORWARD"
	Empty  bool   // the chain has no rules, so it accepts no packet
	Source bool   // the chain is at prerouting
}

// DroppingChains lists the chains that drop packets of a family. DroppingChains does not find out which packets the
// rules of these chains accept. It sees the rules of nftables and iptables-nft, but not the rules of iptables-legacy,
// which is another engine.
func (n *NS) DroppingChains(family Family) ([]DroppingChain, error) {
	chains, err := n.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	own := uint8(unix.NFPROTO_IPV4)
	if family == IPv6 {
		own = unix.NFPROTO_IPV6
	}
	var found []DroppingChain
	for _, m := range chains {
		c, _ := parseChain(m[0], m[nl.SizeofNfgenmsg:])
		if m[0] != unix.NFPROTO_INET && m[0] != own || c.Hook != "forward" && c.Hook != "prerouting" {
			continue
		}
		t := Table{Family: tableFamilies.name(uint32(m[0])),
			Name: unix.ByteSliceToString(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE))}
		if isOwnTable(t.Name) {
			continue
		}
		name := chainName(m)
		rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, c.Name))
		if err != nil {
			return nil, fmt.Errorf("%s: list the rules of %s: %w", n.Name, name, err)
		}
		checks := func(rule []byte) bool { return checksSource(rule[nl.SizeofNfgenmsg:], own) }
		if c.Hook == "prerouting" && slices.ContainsFunc(rules, checks) {
			found = append(found, DroppingChain{Name: name, Source: true})
		}
		if c.Hook == "forward" && (c.Policy == "drop" ||
			len(rules) > 0 && dropsAll(rules[len(rules)-1][nl.SizeofNfgenmsg:])) {
			found = append(found, DroppingChain{Name: name, Empty: len(rules) == 0})
		}
	}
	return found, nil
}

// Chains lists the chains of nftables as nft(8) writes them: "ip filter FORWARD".
func (n *NS) Chains() ([]string, error) {
	chains, err := n.dump(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	all := make([]string, len(chains))
	for i, m := range chains {
		all[i] = chainName(m)
	}
	return all, nil
}

// chainName returns the table and the chain in a message, as nft(8) writes them.
func chainName(m []byte) string {
	return nftName(m[0], inside(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE)) + " " +
		unix.ByteSliceToString(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_NAME))
}

// checksSource reports whether a rule drops packets of a family whose source has no route by the link by which they
// have arrived. firewalld has such a rule of nftables, and iptables has the match "rpfilter".
func checksSource(rule []byte, family uint8) bool {
	checks, ofFamily := false, false // ofFamily: the last expression has loaded the family of the packet
	for name, data := range expressions(rule) {
		switch name {
		case "meta":
			ofFamily = ordered(inside(data, unix.NFTA_META_KEY)) == unix.NFT_META_NFPROTO
			continue
		case "cmp":
			if ofFamily && !bytes.Equal(inside(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE), []byte{family}) {
				return false
			}
		case "fib":
			const source = unix.NFTA_FIB_F_SADDR | unix.NFTA_FIB_F_IIF
			checks = ordered(inside(data, unix.NFTA_FIB_FLAGS))&source == source
		case "match":
			checks = unix.ByteSliceToString(inside(data, unix.NFTA_MATCH_NAME)) == "rpfilter"
		case "immediate":
			code, is := verdictOf(data)
			return checks && is && code == verdictDrop
		}
		ofFamily = false
	}
	return false
}

// dropsAll reports whether a rule drops or rejects every packet, as the last rule of firewalld does.
func dropsAll(rule []byte) bool {
	for name, data := range expressions(rule) {
		switch name {
		case "counter", "log":
		case "reject":
			return true
		case "immediate":
			code, is := verdictOf(data)
			return is && code == verdictDrop
		default:
			return false // the rule is about some packets only
		}
	}
	return false
}
