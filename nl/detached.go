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

// RemoveDetached deletes the rules for which isOurs returns true, and whose IIF is a link that is gone. It returns the
// deleted rules. The kernel does not delete a link's rules with the link, but marks them: ip(8) shows "iif veth7e00
// [detached]".
//
// RemoveDetached may run while plugins add links and rules. A plugin adds a link before its rules, so new rules are not
// detached. But a new link may have the same name as the link of an old rule. So RemoveDetached first asks for a link
// with this name, and keeps the rule if the link exists. If the new link appears only later, RemoveDetached deletes the
// old rule. The rules of the new link stay, because they use another routing table than the old rule.
func (n *NS) RemoveDetached(isOurs func(Rule) bool) (removed []Rule, failed error) {
	rules, err := n.detachedRules()
	if err != nil {
		return nil, fmt.Errorf("%s: list rules: %w", n.Name, err)
	}
	for _, r := range rules {
		if !isOurs(r) {
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

func (n *NS) detachedRules() (rules []Rule, err error) {
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
