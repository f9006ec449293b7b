// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// RemoveDetached deletes rules about links that do not exist any more, and returns these rules. It deletes only rules
// for which the function ours returns true. When a link is deleted, the kernel removes the link's routes and
// neighbours, but not the rules about the link. The kernel marks these rules: ip(8) shows "iif veth7e00 [detached]". So
// RemoveDetached does not ask for the links of unmarked rules.
//
// RemoveDetached may run while plugins add links and rules. A plugin adds a link before the rules about it.
// RemoveDetached asks for the link of each marked rule, because a plugin may have added the link after RemoveDetached
// listed the rules. RemoveDetached deletes a rule by all its properties, and the table is one of them. So the rules
// about a new link of the same name stay, because they have another table.
func (n *NS) RemoveDetached(ours func(Rule) bool) (removed []Rule, failed error) {
	rules, err := n.detached()
	if err != nil {
		return nil, fmt.Errorf("%s: list rules: %w", n.Name, err)
	}
	for _, r := range rules {
		if !ours(r) {
			continue
		}
		if _, err := n.LinkByName(r.IIF); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
			continue
		}
		if err := (Wiring{{n, r}}).Del(); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		removed = append(removed, r)
	}
	return removed, failed
}

// detached lists the rules that the kernel marks as detached.
func (n *NS) detached() (rules []Rule, err error) {
	for _, family := range Families {
		msgs, err := n.ruleMessages(family)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if nl.DeserializeRtMsg(m).Flags&unix.FIB_RULE_IIF_DETACHED != 0 {
				rules = append(rules, parseRule(m))
			}
		}
	}
	return rules, nil
}
