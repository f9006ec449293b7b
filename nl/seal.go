// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/hex"
	"hash/fnv"
	"slices"
)

// The seal of a table is an empty chain that nothing calls. Its name is a hash of all rules and of how the chains are
// called. A transaction makes it together with the rules. So a table with the seal had these rules once, and only an
// operator who edits the table by hand can change them. Add looks for the seal, and counts the rules of each chain.
// That takes half as long as to read the rules. Check reads them.
//
// A table has a second seal for what lasts of it. It shows that the kernel has all that these rules need.

// Sealed reports whether the kernel has the table with the seal of this one: it was made with these rules, and for the
// same Of.
func (t Table) Sealed(n *NS) bool {
	_, _, err := t.chain(n, t.sealName())
	return err == nil
}

// stands reports whether the kernel has the table with its seal, and as many rules as it should have, in chains that
// are called.
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

// Lasting returns the table without the chains that vary. The returned table has a seal of its own, which does not
// depend on these chains.
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

// seal adds the seals to a table that has all rules.
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
		text = append(text, "lasting\n"...) // earlier versions did not seal what lasts of such a table
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
