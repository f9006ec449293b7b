// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A DroppingChain is a chain at netfilter's hook forward. The chain drops or rejects a packet that none of its rules
// accepts.
type DroppingChain struct {
	Name  string // as nft(8) writes it: "ip filter FORWARD"
	Empty bool   // the chain has no rules, so it accepts no packet
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
		if m[0] != unix.NFPROTO_INET && m[0] != own || c.Hook != "forward" {
			continue
		}
		t := Table{Family: tableFamilies.name(uint32(m[0])),
			Name: unix.ByteSliceToString(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE))}
		name := chainName(m)
		rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, c.Name))
		if err != nil {
			return nil, fmt.Errorf("%s: list the rules of %s: %w", n.Name, name, err)
		}
		if c.Policy == "drop" || len(rules) > 0 && dropsAll(rules[len(rules)-1][nl.SizeofNfgenmsg:]) {
			found = append(found, DroppingChain{name, len(rules) == 0})
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
