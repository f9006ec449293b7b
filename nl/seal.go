// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/hex"
	"hash/fnv"
	"slices"
)

// The seal of a table is an empty chain that no hook and no rule calls. Its name is a hash of the table's rules, and of
// the type, hook, priority and policy of each chain. One transaction makes the seal and the rules. So the table had
// these rules when the seal was made: only another program or an operator can have changed the rules later. Add looks
// for the seal, and counts the rules of each chain. This takes half the time of reading the rules. Check reads the
// rules.
//
// If some chains of a table have Varies set, the table has a second seal. The second seal is for the chains without
// Varies (see [Table.Lasting]). It shows that the kernel has accepted these chains. So the kernel has all parts of
// nftables that these chains need.

// Sealed reports whether the kernel's table has the seal of the Table t. A table with this seal was made from a Table
// that had the same values as t in the fields Chains and Of.
func (t Table) Sealed(n *NS) bool {
	_, _, err := t.getChain(n, t.sealName())
	return err == nil
}

// isInstalled reports whether the kernel's table is the Table t. It does not read the rules. The kernel's table must
// have the seal of t, and must not be dormant. Each chain must have the right type, hook, priority, policy and number
// of rules.
func (t Table) isInstalled(n *NS) bool {
	if !t.Sealed(n) {
		return false
	}
	for _, c := range t.Chains {
		is, rules, err := t.getChain(n, c.Name)
		if err != nil || rules != len(c.Rules) || !is.isCalledLike(c) {
			return false
		}
	}
	return t.checkAwake(n) == nil
}

// Lasting returns a copy of the Table t without the chains that have Varies set.
func (t Table) Lasting() Table {
	t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c Chain) bool { return c.Varies })
	return t
}

func (t Table) addSeals(x *transaction) {
	for _, name := range slices.Compact([]string{t.sealName(), t.Lasting().sealName()}) {
		x.addChain(name)
	}
}

// commitSeals adds the seals of t to the kernel's table. The kernel's table must have the rules of t.
func (t Table) commitSeals(n *NS) error {
	x, err := t.newTransaction()
	if err != nil {
		return err
	}
	t.addSeals(x)
	return n.commit(x)
}

func (t Table) sealName() string {
	text := make([]byte, 0, 2<<10)
	if slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Varies }) {
		// Earlier releases made only one seal, even for a table whose chains have Varies set. The names of this
		// release's seals must differ from the name of that seal.
		text = append(text, "lasting\n"...)
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
