// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/sys/unix"
)

// A Branch is a chain for the packets that have arrived by the links of one group. A map in the table leads to it, so a
// packet costs the same however many branches there are. The table has a rule with [ByIIFGroup]. Of two that want the
// same chain for different groups, one gets it.
type Branch struct {
	Table Table
	Group uint32
	Chain string
	Rules []NFRule
}

// branches is the name of the map, and mostBranches how many it has room for.
const (
	branches     = "branches"
	mostBranches = 1 << 10
)

// ByIIFGroup leads a packet to the [Branch] of the group of the link by which it has arrived, if there is one.
func ByIIFGroup() Term {
	return Term{"iifgroup vmap @" + branches, func(x *transaction) ([]attribute, error) {
		const group, size = 35, 4              // the type devgroup of nft(8), which prints the elements by it
		hostEndian := []byte{0, 4, 1, 0, 0, 0} // NFTNL_UDATA_SET_KEYBYTEORDER, likewise
		x.sets++
		x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
			attrString(unix.NFTA_SET_NAME, branches), attrOrdered(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP),
			attrOrdered(unix.NFTA_SET_KEY_TYPE, group), attrOrdered(unix.NFTA_SET_KEY_LEN, size),
			attrOrdered(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT), attrOrdered(unix.NFTA_SET_ID, x.sets),
			// with a size, the kernel chooses a quick one
			nested(unix.NFTA_SET_DESC, attrOrdered(unix.NFTA_SET_DESC_SIZE, mostBranches)),
			attr(unix.NFTA_SET_USERDATA, hostEndian))
		return exprs(meta(unix.NFT_META_IIFGROUP),
			expression("lookup", attrOrdered(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT), attrString(unix.NFTA_LOOKUP_SET, branches),
				attrOrdered(unix.NFTA_LOOKUP_SET_ID, x.sets))), nil
	}}
}

// String is the branch as commands of nft(8), after those for the table.
func (b Branch) String() string {
	t := b.Table.Family + " " + b.Table.Name
	text := fmt.Sprintf("nft 'add chain %s %s'\n", t, b.Chain)
	for _, r := range b.Rules {
		text += fmt.Sprintf("\tnft 'add rule %s %s %s'\n", t, b.Chain, r)
	}
	return text + fmt.Sprintf("\tnft 'add element %s %s { %d : goto %s }'", t, branches, b.Group, b.Chain)
}

// Branch returns the chain of the branch of a group. The error is fs.ErrNotExist if there is none (see errors.Is).
func (t Table) Branch(n *NS, group uint32) (chain string, err error) {
	msg, err := t.get(n, unix.NFT_MSG_GETSETELEM, append(t.branches(), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS,
		nested(unix.NFTA_LIST_ELEM, content(unix.NFTA_SET_ELEM_KEY, native(group)))))...)
	if err != nil {
		return "", err
	}
	return unix.ByteSliceToString(inside(msg, unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM,
		unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)), nil
}

// branches names the map of the table.
func (t Table) branches() []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, branches)}
}

// Add adds the branch to its table. The error is fs.ErrExist if the group has a branch, or the chain exists.
func (b Branch) Add(n *NS) error { return b.install(n, addNew) }

// Put adds the branch, or replaces the rules of its chain.
func (b Branch) Put(n *NS) error { return b.install(n, unix.NLM_F_CREATE) }

func (b Branch) install(n *NS, flags int) error {
	x, err := b.Table.begin()
	if err != nil {
		return err
	}
	x.add(unix.NFT_MSG_NEWCHAIN, flags, attrString(unix.NFTA_CHAIN_TABLE, x.table),
		attrString(unix.NFTA_CHAIN_NAME, b.Chain))
	x.empty(b.Chain)
	if err := b.chain().addRules(x); err != nil {
		return err
	}
	x.element(unix.NFT_MSG_NEWSETELEM, flags, b, nested(unix.NFTA_SET_ELEM_DATA, nested(unix.NFTA_DATA_VERDICT,
		attrOrdered(unix.NFTA_VERDICT_CODE, verdictGoto), attrString(unix.NFTA_VERDICT_CHAIN, b.Chain))))
	return n.commit(x)
}

// empty deletes the rules of a chain.
func (x *transaction) empty(chain string) {
	x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, x.table), attrString(unix.NFTA_RULE_CHAIN, chain))
}

// verdictGoto is NFT_GOTO of linux/netfilter/nf_tables.h.
const verdictGoto = 1<<32 - 4

func (b Branch) chain() Chain { return Chain{Name: b.Chain, Rules: b.Rules} }

// element adds a request about the branch in the map.
func (x *transaction) element(typ, flags int, b Branch, data ...attribute) {
	x.add(typ, flags, append(b.Table.branches(), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS,
		nested(unix.NFTA_LIST_ELEM, append(data, content(unix.NFTA_SET_ELEM_KEY, native(b.Group)))...)))...)
}

// Check compares the chain of the group and its rules.
func (b Branch) Check(n *NS) error {
	chain, err := b.Table.Branch(n, b.Group)
	if err != nil {
		return fmt.Errorf("no branch of the table %s: %w", b.Table.Name, err)
	}
	if chain != b.Chain {
		return differs("the branch of group "+decimal(b.Group), chain, b.Chain)
	}
	got, err := b.Table.fingerprints(n)
	got = slices.DeleteFunc(got, func(f fingerprinted) bool { return f.chain != b.Chain })
	if err == nil && !slices.Equal(got, b.chain().fingerprints()) {
		err = fmt.Errorf("the chain %s of the table %s: %w", b.Chain, b.Table.Name, ErrOtherRules)
	}
	return err
}

// Del deletes the branch.
func (b Branch) Del(n *NS) error {
	x, err := b.Table.begin()
	if err != nil {
		return err
	}
	chain, err := b.Table.Branch(n, b.Group)
	if err != nil {
		return err
	}
	x.element(unix.NFT_MSG_DELSETELEM, 0, b)
	x.empty(chain)
	x.add(unix.NFT_MSG_DELCHAIN, 0, attrString(unix.NFTA_CHAIN_TABLE, x.table),
		attrString(unix.NFTA_CHAIN_NAME, chain))
	return n.commit(x)
}

// Restore adds the branch again after another program has deleted it, or only what leads to its chain. taken reports
// that another group has the chain.
func (b Branch) Restore(n *NS) (taken bool, err error) {
	if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	_, uses, err := b.Table.chain(n, b.Chain) // by its rules, and by what leads to it
	if err != nil {
		return false, err
	}
	rules, err := b.Table.rules(n, attrString(unix.NFTA_RULE_CHAIN, b.Chain))
	if err != nil || uses > len(rules) {
		return true, err
	}
	return false, b.Put(n)
}

// Claim adds the branch unless its group has one. taken reports that another group has the chain.
func (b Branch) Claim(n *NS) (chain string, taken bool, err error) {
	for range 2 { // another process may add one for the group meanwhile
		if chain, err = b.Table.Branch(n, b.Group); !errors.Is(err, fs.ErrNotExist) {
			return chain, false, err
		}
		if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
			return b.Chain, false, err
		}
	}
	return "", true, nil
}
