// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"io/fs"
)

// RemoveDetached deletes the rules that bear our mark and name a link that is no more, and
// returns them: "iif veth7e00 [detached]" to ip(8). With a link the kernel takes its routes
// and neighbours away, but not the rules about it.
//
// It may run beside plugins that add links and rules. The rules are listed first, because
// a link is there before its rules; each link is asked for by its name, because a list may
// miss one on a busy node; and a rule goes by all that it says, its table among it, which
// a link that comes back under the same name does not get again.
func (n *NS) RemoveDetached() ([]Rule, error) {
	return n.RemoveDetachedOf(func(r Rule) bool { return r.Protocol == RouteProtocol })
}

// RemoveDetachedOf is [NS.RemoveDetached] for rules of which ours says so.
func (n *NS) RemoveDetachedOf(ours func(Rule) bool) ([]Rule, error) {
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
