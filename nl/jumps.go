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

// A Jumps selects rules in a chain of another program. Each of these rules jumps to a chain whose name begins with the
// text in the field To. The rule's comment contains the text in the field Comment. Del does not use iptables(8), which
// refuses to change a table if it cannot print one of the table's rules.
type Jumps struct {
	Table, Chain string // a table of the family ip, and a chain of this table
	Comment, To  string
}

// Del deletes the rules and the chains to which they jump, in one transaction. If there are no such rules, Del returns
// nil.
func (j Jumps) Del(n *NS) error {
	t := Table{Family: "ip", Name: j.Table}
	rules, err := t.listRules(n, attrString(unix.NFTA_RULE_CHAIN, j.Chain))
	if isNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	x, err := t.newTransaction()
	if err != nil {
		return err
	}
	var chains []string
	for _, m := range rules {
		rule := m[nl.SizeofNfgenmsg:]
		to := jumpTarget(rule)
		// Look for the comment in the whole rule: older versions of iptables store the comment as an expression, and
		// newer versions store it as user data.
		if !strings.HasPrefix(to, j.To) || !bytes.Contains(rule, []byte(j.Comment)) ||
			string(attrAt(rule, unix.NFTA_RULE_CHAIN)) != j.Chain+"\x00" {
			continue
		}
		x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, j.Table),
			attrString(unix.NFTA_RULE_CHAIN, j.Chain),
			attr(unix.NFTA_RULE_HANDLE, attrAt(rule, unix.NFTA_RULE_HANDLE)))
		if !slices.Contains(chains, to) {
			chains = append(chains, to)
		}
	}
	for _, chain := range chains { // first delete the chain's rules, because the kernel deletes only an empty chain
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

// jumpTarget returns the name of the chain to which a rule jumps, or "" if the rule does not jump.
func jumpTarget(rule []byte) (chain string) {
	for _, e := range attrsOf(attrAt(rule, unix.NFTA_RULE_EXPRESSIONS)) {
		to := attrAt(e, unix.NFTA_EXPR_DATA, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
		if string(attrAt(e, unix.NFTA_EXPR_NAME)) == "immediate\x00" && to != nil {
			chain = unix.ByteSliceToString(to)
		}
	}
	return chain
}
