// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"

	"golang.org/x/sys/unix"
)

// PriorityMangle is the Priority that nft(8) calls "mangle". Chains that set marks have this priority, so the kernel
// calls them before the chains that translate addresses.
const PriorityMangle = -150

// A Chain is a chain of nftables. A hook of netfilter calls the chain, except if it is a chain of a [Branch].
type Chain struct {
	Name     string
	Type     string // filter, nat or route
	Hook     string // prerouting, input, forward, output or postrouting
	Priority int
	Policy   string // accept or drop; "" is accept
	Rules    []NFRule
	Alike    bool // see [Table.Others]
	Varies   bool // see [Table.Lasting]
}

func (c Chain) header() string { return string(c.appendHeader(nil)) }

func (c Chain) appendHeader(b []byte) []byte {
	b = append(append(append(append(b, "type "...), c.Type...), " hook "...), c.Hook...)
	b = strconv.AppendInt(append(b, " priority "...), int64(c.Priority), 10)
	return append(append(append(b, "; policy "...), c.policy()...), ';')
}

func (c Chain) policy() string { return cmp.Or(c.Policy, "accept") }

func (c Chain) isCalledLike(o Chain) bool {
	return c.Type == o.Type && c.Hook == o.Hook && c.Priority == o.Priority && c.policy() == o.policy()
}

func (c Chain) add(x *transaction) error {
	hook, ok := hooksOf(x.family).numberOf(c.Hook)
	if !ok {
		return fmt.Errorf("chain %s: unknown hook %q", c.Name, c.Hook)
	}
	policy := uint32(verdictAccept)
	if c.Policy == "drop" {
		policy = verdictDrop
	}
	x.addChain(c.Name, nested(unix.NFTA_CHAIN_HOOK, attrBigEndian(unix.NFTA_HOOK_HOOKNUM, hook),
		attrBigEndian(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))),
		attrBigEndian(unix.NFTA_CHAIN_POLICY, policy), attrString(unix.NFTA_CHAIN_TYPE, c.Type))
	return c.addRules(x)
}

func (c Chain) addRules(x *transaction) error {
	prints := c.fingerprints()
	for i, r := range c.Rules {
		var code []attribute
		for _, term := range r {
			part, err := term.code(x)
			if err != nil {
				return fmt.Errorf("rule %s: %s: %w", r, term.text, err)
			}
			code = append(code, part...)
		}
		x.addRule(c.Name, prints[i].comment, code)
	}
	return nil
}

// revision is hashed into the comment of each rule (see ruleFingerprint). Increase it if the text of a rule stays the
// same, but this package makes other expressions from the text.
const revision = "1"

// A ruleFingerprint has the name of a rule's chain, and the rule's comment. [Table.Check] compares the fingerprints of
// rules. The comment of our rules is a hash of the rule's text, the revision, and the chain's name, type, hook,
// priority and policy.
type ruleFingerprint struct{ chain, comment string }

// isOurs reports whether the comment has the length of our hashes.
func (f ruleFingerprint) isOurs() bool { return len(f.comment) == hex.EncodedLen(8) }

// fingerprints returns the fingerprint of each rule of the chain.
func (c Chain) fingerprints() []ruleFingerprint {
	chain := []byte(revision + " " + c.Name + " " + c.header())
	all := make([]ruleFingerprint, len(c.Rules))
	h := fnv.New64a()
	var sum [8]byte
	for i, r := range c.Rules {
		text := chain
		for _, t := range r {
			text = append(append(text, ' '), t.text...)
		}
		h.Reset()
		h.Write(append(text, '\n'))
		all[i] = ruleFingerprint{c.Name, hex.EncodeToString(h.Sum(sum[:0]))}
	}
	return all
}

// check returns an error if the kernel's chain has another type, hook, priority or policy than c. A change of these
// properties does not change the fingerprints of the kernel's rules.
func (c Chain) check(n *NS, t Table) error {
	is, _, err := t.getChain(n, c.Name)
	if err != nil {
		return err
	}
	if got, want := is.header(), c.header(); got != want {
		return mismatchError("chain "+c.Name, got, want)
	}
	return nil
}

// getChain asks the kernel for a chain of the table. The returned Chain has no Rules. useCount counts the chain's
// rules, and the elements and rules that lead to the chain.
func (t Table) getChain(n *NS, name string) (c Chain, useCount int, err error) {
	msg, err := t.getObject(n, unix.NFT_MSG_GETCHAIN, attrString(unix.NFTA_CHAIN_TABLE, t.Name),
		attrString(unix.NFTA_CHAIN_NAME, name))
	c, useCount = parseChain(t.family(), msg)
	return c, useCount, err
}

// parseChain decodes the attributes of a chain whose table has the given family.
func parseChain(family uint8, msg []byte) (c Chain, useCount int) {
	for typ, value := range attrsOf(msg) {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_POLICY:
			if bigEndianUint(value) == verdictDrop {
				c.Policy = "drop"
			}
		case unix.NFTA_CHAIN_HOOK:
			c.parseHook(hooksOf(family), value)
		case unix.NFTA_CHAIN_USE: // if a hook calls the chain, this number counts only the chain's own rules
			useCount = int(bigEndianUint(value))
		}
	}
	return c, useCount
}

func (c *Chain) parseHook(hooks nameTable, msg []byte) {
	for typ, value := range attrsOf(msg) {
		switch typ {
		case unix.NFTA_HOOK_HOOKNUM:
			c.Hook = hooks.nameOf(bigEndianUint(value))
		case unix.NFTA_HOOK_PRIORITY:
			c.Priority = int(int32(bigEndianUint(value)))
		}
	}
}

// hooksOf returns the hooks of a family. The table has nft(8)'s name and the kernel's number of each hook.
func hooksOf(family uint8) nameTable {
	if family == unix.NFPROTO_ARP {
		return nameTable{{"input", 0}, {"output", 1}} // NF_ARP_IN, NF_ARP_OUT of linux/netfilter_arp.h
	}
	return hooks
}

var hooks = nameTable{
	{"prerouting", unix.NF_INET_PRE_ROUTING}, {"input", unix.NF_INET_LOCAL_IN}, {"forward", unix.NF_INET_FORWARD},
	{"output", unix.NF_INET_LOCAL_OUT}, {"postrouting", unix.NF_INET_POST_ROUTING},
}
