// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A DroppingChain is a chain of netfilter that may drop packets of pods. If From is valid, the chain drops packets with
// a source in this range. Otherwise, a chain at the hook forward drops or rejects a packet that none of its rules
// accepts. A chain at prerouting drops a packet whose source has no route by the link by which the packet has arrived.
type DroppingChain struct {
	Name   string       // as nft(8) writes it: "ip filter FORWARD"
	Empty  bool         // the chain has no rules, so it accepts no packet
	Source bool         // the chain is at prerouting
	From   netip.Prefix // the chain is at input, forward or prerouting, or such a chain jumps to it
}

// DroppingChains lists the chains that drop packets of a family. DroppingChains does not find out which packets earlier
// rules accept. It sees the rules of nftables and iptables-nft, but not the rules of iptables-legacy, which is another
// engine.
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
		t := Table{Family: tableFamilies.name(uint32(m[0])),
			Name: unix.ByteSliceToString(inside(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE))}
		if m[0] != unix.NFPROTO_INET && m[0] != own || c.Type != "filter" || isOwnTable(t.Name) ||
			!slices.Contains([]string{"input", "forward", "prerouting"}, c.Hook) {
			continue
		}
		rules, err := t.rulesOf(n, c.Name)
		if err != nil {
			return nil, err
		}
		found = append(found, c.dropping(t, rules, own)...)
		for _, rule := range rules {
			to := target(rule)
			if to == "" {
				continue
			}
			more, err := t.rulesOf(n, to)
			if err != nil {
				return nil, err
			}
			found = append(found, droppedSources(t, to, more, own)...)
		}
	}
	return slices.Compact(found), nil
}

// rulesOf lists the rules of a chain, without the headers of their messages.
func (t Table) rulesOf(n *NS, chain string) ([][]byte, error) {
	rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, chain))
	if err != nil && !absent(err) { // meanwhile, a program may have deleted the chain
		return nil, fmt.Errorf("%s: list the rules of %s %s %s: %w", n.Name, t.Family, t.Name, chain, err)
	}
	for i, m := range rules {
		rules[i] = m[nl.SizeofNfgenmsg:]
	}
	return rules, nil
}

// dropping returns an entry for each reason for which a chain may drop packets of pods.
func (c Chain) dropping(t Table, rules [][]byte, family uint8) []DroppingChain {
	name := t.Family + " " + t.Name + " " + c.Name
	found := droppedSources(t, c.Name, rules, family)
	checks := func(rule []byte) bool { return checksSource(rule, family) }
	if c.Hook == "prerouting" && slices.ContainsFunc(rules, checks) {
		found = append(found, DroppingChain{Name: name, Source: true})
	}
	if c.Hook == "forward" && (c.Policy == "drop" || len(rules) > 0 && dropsAll(rules[len(rules)-1])) {
		found = append(found, DroppingChain{Name: name, Empty: len(rules) == 0})
	}
	return found
}

// droppedSources returns an entry for each rule of a chain that drops all packets from a range of sources.
func droppedSources(t Table, chain string, rules [][]byte, family uint8) []DroppingChain {
	var found []DroppingChain
	for _, rule := range rules {
		from := droppedSource(rule, family)
		if from.IsValid() {
			found = append(found, DroppingChain{Name: t.Family + " " + t.Name + " " + chain, From: from})
		}
	}
	return found
}

// droppedSource returns the range of sources whose packets a rule drops or rejects. The rule may spare the packets that
// arrive by some links. For example, the rule of Tailscale spares the packets from Tailscale's link. The result is
// invalid if the rule has any other condition.
func droppedSource(rule []byte, family uint8) (from netip.Prefix) {
	var register string // what the last expression has loaded
	var mask []byte
	for name, data := range expressions(rule) {
		switch name {
		case "counter", "log":
		case "meta":
			register = map[uint32]string{unix.NFT_META_NFPROTO: "family", unix.NFT_META_IIFNAME: "link",
				unix.NFT_META_IIF: "link"}[ordered(inside(data, unix.NFTA_META_KEY))]
		case "payload":
			register, mask = "", nil
			if isSource(data, family) {
				register = "source"
			}
		case "bitwise":
			mask = inside(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
		case "cmp":
			equal := ordered(inside(data, unix.NFTA_CMP_OP)) == unix.NFT_CMP_EQ
			value := inside(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
			switch {
			case register == "source" && equal:
				from = prefixOf(value, mask, family)
			case register == "link" && !equal, register == "family" && equal && bytes.Equal(value, []byte{family}):
			default:
				return netip.Prefix{}
			}
		case "reject":
			return from
		case "immediate":
			if code, is := verdictOf(data); is && code == verdictDrop {
				return from
			}
			return netip.Prefix{}
		default:
			return netip.Prefix{}
		}
	}
	return netip.Prefix{}
}

// isSource reports whether a payload expression loads the first bytes of the source address.
func isSource(payload []byte, family uint8) bool {
	offset := map[uint8]uint32{unix.NFPROTO_IPV4: 12, unix.NFPROTO_IPV6: 8}[family]
	return ordered(inside(payload, unix.NFTA_PAYLOAD_BASE)) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
		ordered(inside(payload, unix.NFTA_PAYLOAD_OFFSET)) == offset
}

// prefixOf returns the prefix whose addresses begin with value, in the bits of mask. Without a mask, all bits of value
// count.
func prefixOf(value, mask []byte, family uint8) netip.Prefix {
	size := map[uint8]int{unix.NFPROTO_IPV4: 4, unix.NFPROTO_IPV6: 16}[family]
	if len(value) > size {
		return netip.Prefix{}
	}
	bits := len(value) * 8
	if mask != nil {
		var of int
		bits, of = net.IPMask(mask).Size()
		if of == 0 {
			return netip.Prefix{} // the mask is no prefix
		}
	}
	whole := make([]byte, size)
	copy(whole, value)
	return netip.PrefixFrom(addrFrom(whole), bits)
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
