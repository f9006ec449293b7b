// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"slices"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Jumps are the rules in a chain of another program that have the text Comment in their comment. The rules jump to a
// chain whose name begins with To. The program iptables refuses to work on a table if iptables cannot print one of the
// table's rules. So Del does not use iptables.
type Jumps struct {
	Table, Chain string // of the family ip
	Comment, To  string
}

// Del deletes the rules, and the chains to which they jump, in one transaction. If there are no such rules, Del returns
// no error.
func (j Jumps) Del(n *NS) error {
	t := Table{Family: "ip", Name: j.Table}
	rules, err := t.rules(n, attrString(unix.NFTA_RULE_CHAIN, j.Chain))
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	x, err := t.begin()
	if err != nil {
		return err
	}
	var chains []string
	for _, m := range rules {
		rule := m[nl.SizeofNfgenmsg:]
		to := target(rule)
		// Depending on the version of iptables, the comment is an expression, or it is in the user data.
		if !strings.HasPrefix(to, j.To) || !bytes.Contains(rule, []byte(j.Comment)) ||
			string(inside(rule, unix.NFTA_RULE_CHAIN)) != j.Chain+"\x00" {
			continue
		}
		x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, j.Table),
			attrString(unix.NFTA_RULE_CHAIN, j.Chain),
			attr(unix.NFTA_RULE_HANDLE, inside(rule, unix.NFTA_RULE_HANDLE)))
		if !slices.Contains(chains, to) {
			chains = append(chains, to)
		}
	}
	for _, chain := range chains { // the kernel deletes only a chain without rules
		x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, j.Table),
			attrString(unix.NFTA_RULE_CHAIN, chain))
		x.add(unix.NFT_MSG_DELCHAIN, 0, attrString(unix.NFTA_CHAIN_TABLE, j.Table),
			attrString(unix.NFTA_CHAIN_NAME, chain))
	}
	if len(chains) == 0 {
		return nil
	}
	return n.commit(x)
}

// target is the chain that a rule jumps to, or "".
func target(rule []byte) (chain string) {
	for _, e := range attrsOf(inside(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		to := inside(e, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
		if string(inside(e, unix.NFTA_EXPR_NAME)) == "immediate\x00" && to != nil {
			chain = unix.ByteSliceToString(to)
		}
	}
	return chain
}
