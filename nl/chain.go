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

// A Chain is a chain of a table, with the hook of netfilter that calls it.
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

// calledAs reports whether both chains have the same type, hook, priority and policy.
func (c Chain) calledAs(o Chain) bool {
	return c.Type == o.Type && c.Hook == o.Hook && c.Priority == o.Priority && c.policy() == o.policy()
}

func (c Chain) add(x *transaction) error {
	hook, ok := hooksOf(x.family).number(c.Hook)
	if !ok {
		return fmt.Errorf("chain %s: unknown hook %q", c.Name, c.Hook)
	}
	policy := uint32(verdictAccept)
	if c.Policy == "drop" {
		policy = verdictDrop
	}
	x.chain(c.Name, nested(unix.NFTA_CHAIN_HOOK, attrOrdered(unix.NFTA_HOOK_HOOKNUM, hook),
		attrOrdered(unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))),
		attrOrdered(unix.NFTA_CHAIN_POLICY, policy), attrString(unix.NFTA_CHAIN_TYPE, c.Type))
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
		x.rule(c.Name, prints[i].comment, code)
	}
	return nil
}

// revision is a part of the text whose hash is the comment of a rule. Increase it when the same rule compiles to other
// code.
const revision = "1"

// A fingerprinted is a rule's chain and comment, by which Check recognizes the rule. The comment is a hash of the
// rule's text, of the chain's name, type, hook, priority and policy, and of revision.
type fingerprinted struct{ chain, comment string }

// ours reports whether the comment is as long as the comments that we give to rules.
func (f fingerprinted) ours() bool { return len(f.comment) == hex.EncodedLen(8) }

// fingerprints returns the fingerprints of the rules.
func (c Chain) fingerprints() []fingerprinted {
	chain := []byte(revision + " " + c.Name + " " + c.header())
	all := make([]fingerprinted, len(c.Rules))
	h := fnv.New64a()
	var sum [8]byte
	for i, r := range c.Rules {
		text := chain
		for _, t := range r {
			text = append(append(text, ' '), t.text...)
		}
		h.Reset()
		h.Write(append(text, '\n'))
		all[i] = fingerprinted{c.Name, hex.EncodeToString(h.Sum(sum[:0]))}
	}
	return all
}

// check returns an error if the kernel's chain has another type, hook, priority or policy than c. check does not
// compare the rules. check is necessary: if an operator or another program sets another policy, the comments of the
// rules do not change.
func (c Chain) check(n *NS, t Table) error {
	is, _, err := t.chain(n, c.Name)
	if err != nil {
		return err
	}
	if got, want := is.header(), c.header(); got != want {
		return differs("chain "+c.Name, got, want)
	}
	return nil
}

// chain asks the kernel for a chain of the table. c has the chain's name, type, hook, priority and policy, but no
// rules. rules is the number of uses: the chain's rules, and the elements and rules that lead to the chain.
func (t Table) chain(n *NS, name string) (c Chain, rules int, err error) {
	msg, err := t.get(n, unix.NFT_MSG_GETCHAIN, attrString(unix.NFTA_CHAIN_TABLE, t.Name),
		attrString(unix.NFTA_CHAIN_NAME, name))
	c, rules = parseChain(t.family(), msg)
	return c, rules, err
}

// parseChain reads the attributes of a chain in a table of a family.
func parseChain(family uint8, msg []byte) (c Chain, rules int) {
	for typ, value := range attrsOf(msg) {
		switch typ {
		case unix.NFTA_CHAIN_NAME:
			c.Name = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_TYPE:
			c.Type = unix.ByteSliceToString(value)
		case unix.NFTA_CHAIN_POLICY:
			if ordered(value) == verdictDrop {
				c.Policy = "drop"
			}
		case unix.NFTA_CHAIN_HOOK:
			c.parseHook(hooksOf(family), value)
		case unix.NFTA_CHAIN_USE: // only rules, if a hook of netfilter calls the chain: nothing else leads to it
			rules = int(ordered(value))
		}
	}
	return c, rules
}

func (c *Chain) parseHook(hooks names, msg []byte) {
	for typ, value := range attrsOf(msg) {
		switch typ {
		case unix.NFTA_HOOK_HOOKNUM:
			c.Hook = hooks.name(ordered(value))
		case unix.NFTA_HOOK_PRIORITY:
			c.Priority = int(int32(ordered(value)))
		}
	}
}

// hooksOf are the hooks of a family.
func hooksOf(family uint8) names {
	if family == unix.NFPROTO_ARP {
		return names{{"input", 0}, {"output", 1}} // NF_ARP_IN, NF_ARP_OUT of linux/netfilter_arp.h
	}
	return hooks
}

var hooks = names{
	{"prerouting", unix.NF_INET_PRE_ROUTING}, {"input", unix.NF_INET_LOCAL_IN}, {"forward", unix.NF_INET_FORWARD},
	{"output", unix.NF_INET_LOCAL_OUT}, {"postrouting", unix.NF_INET_POST_ROUTING},
}
