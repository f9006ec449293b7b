// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/hex"
	"hash/fnv"
	"slices"
)

// The seal of a table is an empty chain that no hook and no rule calls. Its name is a hash of all rules, and of how the
// kernel calls the chains. One transaction makes the seal and the rules. So a table with the seal had these rules once,
// and only an operator who edits the table by hand can have changed them. Add looks for the seal, and counts the rules
// of each chain. Looking and counting take half as long as reading the rules. Check reads the rules.
//
// A table with chains that vary has a second seal, for its other chains (see [Table.Lasting]). The second seal shows
// that the kernel has all parts of nftables that these chains need.

// Sealed reports whether the kernel's table has the seal of t. A table with this seal was made with the rules of t, and
// for the same text Of.
func (t Table) Sealed(n *NS) bool {
	_, _, err := t.chain(n, t.sealName())
	return err == nil
}

// stands reports whether the kernel's table has the seal of t, is not dormant, and has the right number of rules in
// each chain. Each chain in the kernel must also have the type, the hook, the priority and the policy that it has in t.
func (t Table) stands(n *NS) bool {
	if !t.Sealed(n) {
		return false
	}
	for _, c := range t.Chains {
		is, rules, err := t.chain(n, c.Name)
		if err != nil || rules != len(c.Rules) || !is.calledAs(c) {
			return false
		}
	}
	return t.awake(n) == nil
}

// Lasting returns the table without the chains that have Varies set. The returned table has a seal of its own, which
// does not depend on these chains.
func (t Table) Lasting() Table {
	t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c Chain) bool { return c.Varies })
	return t
}

// addSeals adds the seal of the whole table, and the seal of its lasting part.
func (t Table) addSeals(x *transaction) {
	for _, name := range slices.Compact([]string{t.sealName(), t.Lasting().sealName()}) {
		x.chain(name)
	}
}

// seal adds the seals to the kernel's table, which must have all rules of t.
func (t Table) seal(n *NS) error {
	x, err := t.begin()
	if err != nil {
		return err
	}
	t.addSeals(x)
	return n.commit(x)
}

func (t Table) sealName() string {
	text := make([]byte, 0, 2<<10)
	if slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Varies }) {
		text = append(text, "lasting\n"...) // earlier releases made no second seal, so they never used this name
	}
	for _, c := range t.Chains {
		text = c.appendHeader(append(append(append(text, revision+" "...), c.Name...), ' '))
		for _, r := range c.Rules {
			text = append(text, ' ')
			for i, term := range r {
				if i > 0 {
					text = append(text, ' ')
				}
				text = append(text, term.text...)
			}
			text = append(text, '\n')
		}
	}
	h := fnv.New64a()
	h.Write(append(text, t.Of...))
	return "rules_" + hex.EncodeToString(h.Sum(nil))
}
