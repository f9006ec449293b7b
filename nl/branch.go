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

// A Branch is a chain for the packets that have arrived by the links of one group. A map of the table leads from the
// group to the chain. So the cost of a packet does not grow with the number of branches. The table must have a rule
// with [ByIIFGroup]. If two processes want the same chain for different groups, one process gets the chain.
//
// A Branch may have a second chain, for the packets that have arrived by one link. Then the table must also have a rule
// with [ByIIF].
type Branch struct {
	Table   Table
	Group   uint32
	Chain   string
	Rules   []NFRule
	Link    int      // index of the one link
	Arrived []NFRule // of the second chain; nil: there is no second chain
}

// The names of the maps, and the number of elements for which each map has room.
const (
	branches     = "branches"
	arrivals     = "arrivals"
	mostBranches = 1 << 10
)

// ByIIFGroup looks for the [Branch] of the group of the link by which a packet has arrived. If there is such a Branch,
// ByIIFGroup leads the packet to the chain of the Branch.
func ByIIFGroup() Term { return byMap("iifgroup", unix.NFT_META_IIFGROUP, branches, 35) }

// ByIIF looks for the [Branch] whose Link is the link by which a packet has arrived. If there is such a Branch, ByIIF
// leads the packet to the second chain of the Branch.
func ByIIF() Term { return byMap("iif", unix.NFT_META_IIF, arrivals, 20) }

// byMap leads a packet to the chain that a map has for the packet's key. typ is the number of the keys' type in nft(8),
// devgroup or ifindex: nft(8) needs the type to print the elements.
func byMap(word string, key uint32, set string, typ uint32) Term {
	return Term{word + " vmap @" + set, func(x *transaction) ([]attribute, error) {
		const size = 4
		hostEndian := []byte{0, 4, 1, 0, 0, 0} // NFTNL_UDATA_SET_KEYBYTEORDER, also for nft(8)
		x.sets++
		x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
			attrString(unix.NFTA_SET_NAME, set), attrOrdered(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP),
			attrOrdered(unix.NFTA_SET_KEY_TYPE, typ), attrOrdered(unix.NFTA_SET_KEY_LEN, size),
			attrOrdered(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT), attrOrdered(unix.NFTA_SET_ID, x.sets),
			// with a size, the kernel chooses a fast type of map
			nested(unix.NFTA_SET_DESC, attrOrdered(unix.NFTA_SET_DESC_SIZE, mostBranches)),
			attr(unix.NFTA_SET_USERDATA, hostEndian))
		return exprs(meta(key),
			expression("lookup", attrOrdered(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT), attrString(unix.NFTA_LOOKUP_SET, set),
				attrOrdered(unix.NFTA_LOOKUP_SET_ID, x.sets))), nil
	}}
}

// A leg is a chain of a branch, and the element that leads to the chain: the name of the map, and the key.
type leg struct {
	set   string
	key   uint32
	chain Chain
}

// legs returns the legs of the branch.
func (b Branch) legs() []leg {
	all := []leg{{branches, b.Group, Chain{Name: b.Chain, Rules: b.Rules}}}
	if b.Arrived != nil {
		all = append(all, leg{arrivals, uint32(b.Link), Chain{Name: secondOf(b.Chain), Rules: b.Arrived}})
	}
	return all
}

// String is the branch as commands of nft(8), to run after the commands for the table.
func (b Branch) String() string {
	t := b.Table.Family + " " + b.Table.Name
	var lines []string
	for _, l := range b.legs() {
		lines = append(lines, fmt.Sprintf("nft 'add chain %s %s'", t, l.chain.Name))
		for _, r := range l.chain.Rules {
			lines = append(lines, fmt.Sprintf("nft 'add rule %s %s %s'", t, l.chain.Name, r))
		}
		lines = append(lines, fmt.Sprintf("nft 'add element %s %s { %d : goto %s }'", t, l.set, l.key, l.chain.Name))
	}
	return strings.Join(lines, "\n\t")
}

// Branch returns the name of the chain of a group's [Branch]. The error is fs.ErrNotExist if the group has no branch
// (see errors.Is).
func (t Table) Branch(n *NS, group uint32) (chain string, err error) {
	return t.leads(n, leg{set: branches, key: group})
}

// BranchGroups lists the groups that have a branch in the table.
func (t Table) BranchGroups(n *NS) (groups []uint32, err error) {
	all, err := t.elements(n, branches)
	for _, e := range all {
		groups = append(groups, number(inside(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)))
	}
	return groups, err
}

// leads returns the chain to which the element of a leg leads.
func (t Table) leads(n *NS, l leg) (chain string, err error) {
	msg, err := t.get(n, unix.NFT_MSG_GETSETELEM, l.element(t)...)
	if err != nil {
		return "", err
	}
	return verdictChain(inside(msg, unix.NFTA_SET_ELEM_LIST_ELEMENTS, unix.NFTA_LIST_ELEM)), nil
}

// verdictChain returns the chain to which an element leads.
func verdictChain(element []byte) string {
	return unix.ByteSliceToString(inside(element, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT,
		unix.NFTA_VERDICT_CHAIN))
}

// element returns the attributes of a request about the element of a leg.
func (l leg) element(t Table, data ...attribute) []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, l.set), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS,
			nested(unix.NFTA_LIST_ELEM, append(data, content(unix.NFTA_SET_ELEM_KEY, native(l.key)))...))}
}

// Add adds the branch to its table. The error is fs.ErrExist if the group has a branch, or the chain exists.
func (b Branch) Add(n *NS) error { return b.install(n, addNew) }

// Put adds the branch, or replaces the rules of its chains.
func (b Branch) Put(n *NS) error { return b.install(n, unix.NLM_F_CREATE) }

func (b Branch) install(n *NS, flags int) error {
	x, err := b.Table.begin()
	if err != nil {
		return err
	}
	stale, err := b.arrivals(n, b.Chain)
	if err != nil {
		return err
	}
	for i, l := range b.legs() {
		x.add(unix.NFT_MSG_NEWCHAIN, flags, attrString(unix.NFTA_CHAIN_TABLE, x.table),
			attrString(unix.NFTA_CHAIN_NAME, l.chain.Name))
		if i == 0 { // not earlier: the kernel must first refuse a chain that another group has
			b.delElements(x, stale)
		}
		x.empty(l.chain.Name)
		if err := l.chain.addRules(x); err != nil {
			return err
		}
		x.add(unix.NFT_MSG_NEWSETELEM, flags, l.element(b.Table, nested(unix.NFTA_SET_ELEM_DATA,
			nested(unix.NFTA_DATA_VERDICT, attrOrdered(unix.NFTA_VERDICT_CODE, verdictGoto),
				attrString(unix.NFTA_VERDICT_CHAIN, l.chain.Name))))...)
		flags = unix.NLM_F_CREATE // the second chain belongs to the group that has the first
	}
	return n.commit(x)
}

// empty deletes the rules of a chain.
func (x *transaction) empty(chain string) {
	x.add(unix.NFT_MSG_DELRULE, 0, attrString(unix.NFTA_RULE_TABLE, x.table), attrString(unix.NFTA_RULE_CHAIN, chain))
}

// verdictGoto is NFT_GOTO of linux/netfilter/nf_tables.h.
const verdictGoto = 1<<32 - 4

// Check returns an error if the maps lead the group or the link to another chain, or if the rules of these chains
// differ.
func (b Branch) Check(n *NS) error {
	for _, l := range b.legs() {
		chain, err := b.Table.leads(n, l)
		if err != nil {
			return fmt.Errorf("read the entry of the map %s in the table %s: %w", l.set, b.Table.Name, err)
		}
		if chain != l.chain.Name {
			return differs("the chain in the map "+l.set+" for "+decimal(l.key), chain, l.chain.Name)
		}
	}
	all, err := b.Table.fingerprints(n)
	if err != nil {
		return err
	}
	for _, l := range b.legs() {
		got := slices.DeleteFunc(slices.Clone(all), func(f fingerprinted) bool { return f.chain != l.chain.Name })
		if !slices.Equal(got, l.chain.fingerprints()) {
			return fmt.Errorf("%w in the chain %s of the table %s", ErrOtherRules, l.chain.Name, b.Table.Name)
		}
	}
	return nil
}

// Del deletes the branch. Del also deletes the second chain, even if Arrived is nil.
func (b Branch) Del(n *NS) error {
	x, err := b.Table.begin()
	if err != nil {
		return err
	}
	first := leg{set: branches, key: b.Group}
	chain, err := b.Table.leads(n, first)
	if err != nil {
		return err
	}
	arrived, err := b.arrivals(n, chain)
	if err != nil {
		return err
	}
	b.delElements(x, append(arrived, first))
	for _, name := range []string{chain, secondOf(chain)} {
		if _, _, err := b.Table.chain(n, name); absent(err) {
			continue
		}
		x.empty(name)
		x.add(unix.NFT_MSG_DELCHAIN, 0, attrString(unix.NFTA_CHAIN_TABLE, x.table),
			attrString(unix.NFTA_CHAIN_NAME, name))
	}
	return n.commit(x)
}

// arrivals returns the elements for the branch's link, and the elements that lead to a second chain. chain is the first
// chain that belongs to this second chain. There may be several elements, because another program may have deleted only
// a part of an earlier branch.
func (b Branch) arrivals(n *NS, chain string) (found []leg, err error) {
	all, err := b.Table.elements(n, arrivals)
	for _, e := range all {
		key := number(inside(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE))
		if key == uint32(b.Link) || verdictChain(e) == secondOf(chain) {
			found = append(found, leg{set: arrivals, key: key})
		}
	}
	return found, err
}

// delElements deletes elements of the maps.
func (b Branch) delElements(x *transaction, all []leg) {
	for _, l := range all {
		x.add(unix.NFT_MSG_DELSETELEM, 0, l.element(b.Table)...)
	}
}

// secondOf returns the name of a branch's second chain. chain is the name of its first chain.
func secondOf(chain string) string { return chain + "_arrived" }

// Restore adds the branch again if another program has deleted the branch, or only the element that leads to the
// branch's chain. taken reports that another group has the chain.
func (b Branch) Restore(n *NS) (taken bool, err error) {
	if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	_, uses, err := b.Table.chain(n, b.Chain) // uses counts the chain's rules, and the elements that lead to the chain
	if err != nil {
		return false, err
	}
	rules, err := b.Table.rules(n, attrString(unix.NFTA_RULE_CHAIN, b.Chain))
	if err != nil || uses > len(rules) {
		return true, err
	}
	return false, b.Put(n)
}

// Claim returns the chain of the group's branch. If the group has no branch, Claim first adds b. taken reports that
// another group has the chain.
func (b Branch) Claim(n *NS) (chain string, taken bool, err error) {
	for range 2 { // another process may add a branch for the group meanwhile
		if chain, err = b.Table.Branch(n, b.Group); !errors.Is(err, fs.ErrNotExist) {
			return chain, false, err
		}
		if err = b.Add(n); !errors.Is(err, fs.ErrExist) {
			return b.Chain, false, err
		}
	}
	return "", true, nil
}
