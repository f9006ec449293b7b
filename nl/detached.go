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

// RemoveDetached deletes rules whose IIF is a link that does not exist any more, and returns the deleted rules. It
// deletes only rules for which isOurs returns true. When a link is deleted, the kernel removes the link's routes and
// neighbours, but not the rules whose IIF is this link. The kernel marks these rules as detached: ip(8) shows "iif
// veth7e00 [detached]".
//
// RemoveDetached may run while plugins add links and rules. A plugin adds a link before the link's rules, so these new
// rules are not detached. A new link may have the name that a detached rule has as IIF. So before RemoveDetached
// deletes a detached rule, it asks the kernel for a link with this name. If the link exists, the rule stays. A plugin
// may also add the link after RemoveDetached has asked, and before it deletes the rule. Even then, the new rules of the
// link stay: they use another routing table, so the deletion of the detached rule does not match them.
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

// detachedRules lists the rules that the kernel marks as detached.
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
