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

// RemoveDetached deletes the rules about links that do not exist any more, if ours reports them, and returns them: "iif
// veth7e00 [detached]" in ip(8). The kernel removes routes and neighbours with a link, but not the rules about it. The
// kernel marks these rules, so RemoveDetached asks nothing about the links of other rules.
//
// RemoveDetached may run beside plugins that add links and rules. A link exists before its rules. If a rule is marked,
// RemoveDetached still asks for the link, because a link may have come since. It deletes a rule by all its properties.
// One property is the table, and a new link of the same name has another table.
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

// detached lists the rules of which the kernel says so.
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
