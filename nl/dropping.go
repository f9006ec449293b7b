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

// A DroppingChain is another program's chain that may drop or reject packets of pods:
//
//   - If From is valid, the chain drops all packets whose source is in this range of addresses.
//   - If Source is true, the chain drops each packet whose incoming link has no route to the packet's source.
//   - Otherwise, the chain drops all forwarded packets, except packets that an earlier rule accepts.
type DroppingChain struct {
	Name   string       // as nft(8) writes it: "ip filter FORWARD"
	Empty  bool         // the chain has no rules: its policy drops all packets
	Source bool         // true only for chains with the hook prerouting
	From   netip.Prefix // only if input, forward or prerouting calls the chain, or a chain that jumps to this chain
}

// DroppingChains lists the chains that may drop packets of a family. It ignores that earlier rules of a chain may
// accept some packets. It sees the rules of nftables and iptables-nft, but not those of iptables-legacy, which the
// kernel keeps outside nftables.
func (n *NS) DroppingChains(family Family) ([]DroppingChain, error) {
	chains, err := n.dumpObjects(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC)
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
		t := Table{Family: tableFamilies.nameOf(uint32(m[0])),
			Name: unix.ByteSliceToString(attrAt(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE))}
		if m[0] != unix.NFPROTO_INET && m[0] != own || c.Type != "filter" || isOwnTable(t.Name) ||
			!slices.Contains([]string{"input", "forward", "prerouting"}, c.Hook) {
			continue
		}
		rules, err := t.rulesOfChain(n, c.Name)
		if err != nil {
			return nil, err
		}
		found = append(found, c.droppingChains(t, rules, own)...)
		for _, rule := range rules {
			to := jumpTarget(rule)
			if to == "" {
				continue
			}
			more, err := t.rulesOfChain(n, to)
			if err != nil {
				return nil, err
			}
			found = append(found, droppedSources(t, to, more, own)...)
		}
	}
	return slices.Compact(found), nil
}

func (t Table) rulesOfChain(n *NS, chain string) ([][]byte, error) {
	rules, err := t.listRules(n, attrString(unix.NFTA_RULE_CHAIN, chain))
	if err != nil && !isNotExist(err) { // if a program has deleted the chain meanwhile, the chain has no rules
		return nil, fmt.Errorf("%s: list the rules of %s %s %s: %w", n.Name, t.Family, t.Name, chain, err)
	}
	for i, m := range rules {
		rules[i] = m[nl.SizeofNfgenmsg:]
	}
	return rules, nil
}

func (c Chain) droppingChains(t Table, rules [][]byte, family uint8) []DroppingChain {
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

// droppedSources returns a DroppingChain for each rule that drops all packets from a range of addresses.
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

// droppedSource returns the range of sources from which a rule drops or rejects all packets. The rule may have an
// exception for some incoming links: for example, Tailscale's rule does not drop packets that arrive through
// Tailscale's own link. If the rule has any other condition, the returned Prefix is not valid.
func droppedSource(rule []byte, family uint8) (from netip.Prefix) {
	var register string // what the last expression has loaded into the register
	var mask []byte
	for name, data := range expressions(rule) {
		switch name {
		case "counter", "log":
		case "meta":
			register = map[uint32]string{unix.NFT_META_NFPROTO: "family", unix.NFT_META_IIFNAME: "link",
				unix.NFT_META_IIF: "link"}[bigEndianUint(attrAt(data, unix.NFTA_META_KEY))]
		case "payload":
			register, mask = "", nil
			if isSource(data, family) {
				register = "source"
			}
		case "bitwise":
			mask = attrAt(data, unix.NFTA_BITWISE_MASK, unix.NFTA_DATA_VALUE)
		case "cmp":
			equal := bigEndianUint(attrAt(data, unix.NFTA_CMP_OP)) == unix.NFT_CMP_EQ
			value := attrAt(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE)
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

// isSource reports whether a payload expression loads the source address, or its first bytes.
func isSource(payload []byte, family uint8) bool {
	offset := map[uint8]uint32{unix.NFPROTO_IPV4: 12, unix.NFPROTO_IPV6: 8}[family]
	return bigEndianUint(attrAt(payload, unix.NFTA_PAYLOAD_BASE)) == unix.NFT_PAYLOAD_NETWORK_HEADER &&
		bigEndianUint(attrAt(payload, unix.NFTA_PAYLOAD_OFFSET)) == offset
}

// prefixOf returns the prefix that contains all addresses with the given first bytes. mask is the netmask, or nil.
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
			return netip.Prefix{} // in the mask, a 1 follows a 0
		}
	}
	whole := make([]byte, size)
	copy(whole, value)
	return netip.PrefixFrom(addrFrom(whole), bits)
}

// Chains lists the chains of nftables in the form "ip filter FORWARD".
func (n *NS) Chains() ([]string, error) {
	chains, err := n.dumpObjects(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("%s: list chains: %w", n.Name, err)
	}
	all := make([]string, len(chains))
	for i, m := range chains {
		all[i] = chainName(m)
	}
	return all, nil
}

// chainName returns the name of the chain that a message of the kernel describes, in the form "ip filter FORWARD".
func chainName(m []byte) string {
	return nftName(m[0], attrAt(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_TABLE)) + " " +
		unix.ByteSliceToString(attrAt(m[nl.SizeofNfgenmsg:], unix.NFTA_CHAIN_NAME))
}

// checksSource reports whether a rule checks the source of each packet of a family: it drops a packet if the incoming
// link has no route to the packet's source. firewalld has such a rule, and iptables has the match "rpfilter".
func checksSource(rule []byte, family uint8) bool {
	checks, ofFamily := false, false // ofFamily: the register has the family of the packet
	for name, data := range expressions(rule) {
		switch name {
		case "meta":
			ofFamily = bigEndianUint(attrAt(data, unix.NFTA_META_KEY)) == unix.NFT_META_NFPROTO
			continue
		case "cmp":
			if ofFamily && !bytes.Equal(attrAt(data, unix.NFTA_CMP_DATA, unix.NFTA_DATA_VALUE), []byte{family}) {
				return false
			}
		case "fib":
			const source = unix.NFTA_FIB_F_SADDR | unix.NFTA_FIB_F_IIF
			checks = bigEndianUint(attrAt(data, unix.NFTA_FIB_FLAGS))&source == source
		case "match":
			checks = unix.ByteSliceToString(attrAt(data, unix.NFTA_MATCH_NAME)) == "rpfilter"
		case "immediate":
			code, is := verdictOf(data)
			return checks && is && code == verdictDrop
		}
		ofFamily = false
	}
	return false
}

// dropsAll reports whether a rule drops or rejects every packet, like firewalld's last rule.
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
			return false // perhaps the rule matches only some packets
		}
	}
	return false
}
