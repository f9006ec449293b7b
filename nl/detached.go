// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"io/fs"
)

// RemoveDetached deletes the rules about links that do not exist any more, if ours reports them, and returns them:
// "iif veth7e00 [detached]" in ip(8). The kernel removes routes and neighbours with a link, but
// not the rules about it.
//
// It may run beside plugins that add links and rules. It lists the rules first, because a link
// exists before its rules. It asks for each link by its name, because a list may miss one on a
// busy node. It deletes a rule by all its properties. One of these is its table, and a new link
// of the same name has another.
func (n *NS) RemoveDetached(ours func(Rule) bool) ([]Rule, error) {
	rules, err := n.Rules()
	if err != nil {
		return nil, err
	}
	var removed []Rule
	var failed error
	for _, r := range rules {
		if r.IIF == "" || !ours(r) {
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
