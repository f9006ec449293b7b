// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Branch is a chain of nftables for packets that have arrived through links of one group. The table has a map from
// each group to the chain of the group's Branch. So the time that a packet takes does not depend on the number of
// Branches. To use the map, the table must have a rule with [ByIIFGroup]. If two processes add Branches for different
// groups, and both Branches name the same chain, only one process succeeds.
//
// A Branch may have a second chain, for packets that have arrived through one particular link. For the second chain,
// the table must also have a rule with [ByIIF].
type Branch struct {
	Table   Table
	Group   uint32
	Chain   string
	Rules   []NFRule
	Link    int      // the index of the link whose packets go to the second chain
	Arrived []NFRule // the rules of the second chain; nil: there is no second chain
}

// The names of the two maps, and the number of elements for which each map has room.
const (
	branchMap    = "branches"
	arrivalMap   = "arrivals"
	mostBranches = 1 << 10
)

// ByIIFGroup sends a packet to the chain of the [Branch] whose Group is the group of the incoming link. Without such a
// Branch, the kernel goes on with the next rule.
func ByIIFGroup() Term { return byMap("iifgroup", unix.NFT_META_IIFGROUP, branchMap, 35) }

// ByIIF sends a packet to the second chain of the [Branch] whose Link is the incoming link. Without such a Branch, the
// kernel goes on with the next rule.
func ByIIF() Term { return byMap("iif", unix.NFT_META_IIF, arrivalMap, 20) }

// byMap returns a Term that looks up a property of the packet in a map. The packet then goes to the chain in the map's
// element. The argument "set" is the name of the map. The argument "key" is the kernel's number of the property. The
// argument "typ" is nft(8)'s number of the property's type (devgroup or ifindex): nft(8) needs this number to print the
// map.
func byMap(word string, key uint32, set string, typ uint32) Term {
	return Term{word + " vmap @" + set, func(x *transaction) ([]attribute, error) {
		const size = 4
		hostEndian := []byte{0, 4, 1, 0, 0, 0} // NFTNL_UDATA_SET_KEYBYTEORDER: only nft(8) needs it
		x.sets++
		x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
			attrString(unix.NFTA_SET_NAME, set), attrBigEndian(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP),
			attrBigEndian(unix.NFTA_SET_KEY_TYPE, typ), attrBigEndian(unix.NFTA_SET_KEY_LEN, size),
			attrBigEndian(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT), attrBigEndian(unix.NFTA_SET_ID, x.sets),
			// with the map's size in the request, the kernel chooses a faster implementation of the map
			nested(unix.NFTA_SET_DESC, attrBigEndian(unix.NFTA_SET_DESC_SIZE, mostBranches)),
			attr(unix.NFTA_SET_USERDATA, hostEndian))
		return exprs(meta(key),
			expression("lookup", attrBigEndian(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1),
				attrBigEndian(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT), attrString(unix.NFTA_LOOKUP_SET, set),
				attrBigEndian(unix.NFTA_LOOKUP_SET_ID, x.sets))), nil
	}}
}

// A branchPart is one chain of a Branch, with the map element that leads to the chain.
type branchPart struct {
	set   string
	key   uint32
	chain Chain
}

func (b Branch) parts() []branchPart {
	all := []branchPart{{branchMap, b.Group, Chain{Name: b.Chain, Rules: b.Rules}}}
	if b.Arrived != nil {
		second := Chain{Name: secondChainName(b.Chain), Rules: b.Arrived}
		all = append(all, branchPart{arrivalMap, uint32(b.Link), second})
	}
	return all
}

func (b Branch) String() string {
	t := b.Table.Family + " " + b.Table.Name
	var lines []string
	for _, l := range b.parts() {
		lines = append(lines, fmt.Sprintf("nft 'add chain %s %s'", t, l.chain.Name))
		for _, r := range l.chain.Rules {
			lines = append(lines, fmt.Sprintf("nft 'add rule %s %s %s'", t, l.chain.Name, r))
		}
		lines = append(lines, fmt.Sprintf("nft 'add element %s %s { %d : goto %s }'", t, l.set, l.key, l.chain.Name))
	}
	return strings.Join(lines, "\n\t")
}

// Branch returns the name of the chain to which packets of a group go. The error is fs.ErrNotExist if the group has no
// [Branch].
func (t Table) Branch(n *NS, group uint32) (chain string, err error) {
	return t.targetChain(n, branchPart{set: branchMap, key: group})
}

// BranchGroups lists the groups that have a Branch in the table.
func (t Table) BranchGroups(n *NS) (groups []uint32, err error) {
	all, err := t.setElements(n, branchMap)
	for _, e := range all {
		groups = append(groups, nativeUint(attrAt(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)))
	}
	return groups, err
}

// targetChain asks the kernel for the element of the map l.set that has the key l.key. It returns the name of the chain
// to which this element leads.
func (t Table) targetChain(n *NS, l branchPart) (chain string, err error) {
	msg, err := t.getObject(n, unix.NFT_MSG_GETSETELEM, l.elementAttrs(t)...)
	if err != nil {
		return "", err
	}
	return verdictChain(attrAt(msg, unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM)), nil
}

func verdictChain(element []byte) string {
	return unix.ByteSliceToString(attrAt(element, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT,
		unix.NFTA_VERDICT_CHAIN))
}

func (l branchPart) elementAttrs(t Table, data ...attribute) []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, l.set), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS,
			nested(unix.NFTA_LIST_ELEM, append(data, dataAttr(unix.NFTA_SET_ELEM_KEY, nativeBytes(l.key)))...))}
}

// Add returns fs.ErrExist if the group has a Branch, or if the chain exists.
func (b Branch) Add(n *NS) error { return b.install(n, addNew) }

// Put adds the Branch, or replaces the rules of its chains.
func (b Branch) Put(n *NS) error { return b.install(n, unix.NLM_F_CREATE) }

func (b Branch) install(n *NS, flags int) error {
	x, err := b.Table.newTransaction()
	if err != nil {
		return err
	}
	stale, err := b.arrivalParts(n, b.Chain)
	if err != nil {
		return err
	}
	for i, l := range b.parts() {
		x.add(unix.NFT_MSG_NEWCHAIN, flags, attrString(unix.NFTA_CHAIN_TABLE, x.table),
			attrString(unix.NFTA_CHAIN_NAME, l.chain.Name))
		// This request comes after NEWCHAIN: if another group has the chain, commit must return the error of NEWCHAIN,
		// and commit returns the first error.
		if i == 0 {
			b.delElements(x, stale)
		}
		x.emptyChain(l.chain.Name)
		if err := l.chain.addRules(x); err != nil {
			return err
		}
		x.add(unix.NFT_MSG_NEWSETELEM, flags, l.elementAttrs(b.Table, nested(unix.NFTA_SET_ELEM_DATA,
			nested(unix.NFTA_DATA_VERDICT, attrBigEndian(unix.NFTA_VERDICT_CODE, verdictGoto),
				attrString(unix.NFTA_VERDICT_CHAIN, l.chain.Name))))...)
		flags = unix.NLM_F_CREATE // without NLM_F_EXCL, because an existing second chain belongs to this group
	}
	return n.commit(x)
}

func (x *transaction) emptyChain(chain string) {
	x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, x.table), attrString(unix.NFTA_RULE_CHAIN, chain))
}

// verdictGoto is NFT_GOTO of linux/netfilter/nf_tables.h.
const verdictGoto = 1<<32 - 4

// Check returns an error if a map has no element for b.Group or b.Link, or if this element leads to another chain. It
// also returns an error if the rules of a chain differ.
func (b Branch) Check(n *NS) error {
	for _, l := range b.parts() {
		chain, err := b.Table.targetChain(n, l)
		if err != nil {
			return fmt.Errorf("read the entry of the map %s in the table %s: %w", l.set, b.Table.Name, err)
		}
		if chain != l.chain.Name {
			return mismatchError("the chain in the map "+l.set+" for "+decimal(l.key), chain, l.chain.Name)
		}
	}
	all, err := b.Table.readFingerprints(n)
	if err != nil {
		return err
	}
	for _, l := range b.parts() {
		got := slices.DeleteFunc(slices.Clone(all), func(f ruleFingerprint) bool { return f.chain != l.chain.Name })
		if !slices.Equal(got, l.chain.fingerprints()) {
			return fmt.Errorf("chain %s of the table %s: %w", l.chain.Name, b.Table.Name, ErrOtherRules)
		}
	}
	return nil
}

// Del deletes the kernel's Branch of b.Group, with its second chain if there is one.
func (b Branch) Del(n *NS) error {
	x, err := b.Table.newTransaction()
	if err != nil {
		return err
	}
	first := branchPart{set: branchMap, key: b.Group}
	chain, err := b.Table.targetChain(n, first)
	if err != nil {
		return err
	}
	arrived, err := b.arrivalParts(n, chain)
	if err != nil {
		return err
	}
	b.delElements(x, append(arrived, first))
	for _, name := range []string{chain, secondChainName(chain)} {
		if _, _, err := b.Table.getChain(n, name); isNotExist(err) {
			continue
		}
		x.emptyChain(name)
		x.add(unix.NFT_MSG_DELCHAIN, 0, attrString(unix.NFTA_CHAIN_TABLE, x.table),
			attrString(unix.NFTA_CHAIN_NAME, name))
	}
	return n.commit(x)
}

// arrivalParts returns those elements of arrivalMap that have the key b.Link, or that lead to secondChainName(chain).
// An element with the key b.Link may remain from an earlier Branch: another program may have deleted other parts of
// that Branch, but not this element.
func (b Branch) arrivalParts(n *NS, chain string) (found []branchPart, err error) {
	all, err := b.Table.setElements(n, arrivalMap)
	for _, e := range all {
		key := nativeUint(attrAt(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
		if key == uint32(b.Link) || verdictChain(e) == secondChainName(chain) {
			found = append(found, branchPart{set: arrivalMap, key: key})
		}
	}
	return found, err
}

func (b Branch) delElements(x *transaction, all []branchPart) {
	for _, l := range all {
		x.add(unix.NFT_MSG_DELSETELEM, 0, l.elementAttrs(b.Table)...)
	}
}

func secondChainName(chain string) string { return chain + "_arrived" }

// Restore adds the Branch again if another program has deleted the Branch, or has deleted only the element that leads
// to the chain. If the chain belongs to another group, Restore changes nothing and returns true.
func (b Branch) Restore(n *NS) (taken bool, err error) {
	if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	// useCount is the number of the chain's rules plus the number of the elements that lead to the chain
	_, useCount, err := b.Table.getChain(n, b.Chain)
	if err != nil {
		return false, err
	}
	rules, err := b.Table.listRules(n, attrString(unix.NFTA_RULE_CHAIN, b.Chain))
	if err != nil || useCount > len(rules) {
		return true, err
	}
	return false, b.Put(n)
}

// Claim returns the chain of the group's Branch. If the group has no Branch, Claim adds the Branch b. If another group
// already uses the chain b.Chain, Claim changes nothing and returns true.
func (b Branch) Claim(n *NS) (chain string, taken bool, err error) {
	// if Add fails because another process has just added the group's Branch, the second try finds this Branch
	for range 2 {
		if chain, err = b.Table.Branch(n, b.Group); !errors.Is(err, fs.ErrNotExist) {
			return chain, false, err
		}
		if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
			return b.Chain, false, err
		}
	}
	return "", true, nil
}
