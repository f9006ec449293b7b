// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Table is a table of nftables that only we use. Add and Put install or replace the whole table in one transaction. A
// Table must have a rule, because Check treats a table without rules as missing.
type Table struct {
	Family string // inet, ip, ip6 or arp
	Name   string
	Chains []Chain
	Of     string // a text: the table's seal depends on Chains and on Of, see [Table.Sealed]
	More   bool   // the kernel's table may have other chains, which Check ignores
	// With Others, Check also accepts a table that one of our plugins has made for another configuration. Check then
	// ignores additional rules of ours. A chain whose field Alike is true may be missing. If the chain exists, it needs
	// at least one rule of ours.
	Others bool
}

// An NFRule is a rule of nftables: first conditions, and then actions on the packets that meet all conditions.
type NFRule []Term

func (r NFRule) String() string {
	words := make([]string, len(r))
	for i, t := range r {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}

func (t Table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nft 'table %s %s {\n", t.Family, t.Name)
	for _, c := range t.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n\t\t%s\n", c.Name, c.header())
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}'")
	return b.String()
}

// Add installs the Table t, or replaces the kernel's table of the same name if that table differs from t. Another
// program may have flushed the kernel's table, or another release may have made it.
func (t Table) Add(n *NS) error {
	if t.isInstalled(n) {
		return errSame
	}
	err := t.Check(n)
	if err == nil { // the rules are right, but the table lacks a seal of t
		return cmp.Or(t.commitSeals(n), errSame)
	}
	if errors.Is(err, fs.ErrNotExist) {
		// try without a deletion first, because a deletion is slow
		newTable := func(x *transaction) { x.addTableRequest(unix.NFT_MSG_NEWTABLE, addNew) }
		if err = t.install(n, newTable); !errors.Is(err, fs.ErrExist) {
			return t.addModuleNames(err)
		}
		if t.isInstalled(n) { // another process has just added the table
			return errSame
		}
	}
	return t.addModuleNames(t.install(n, (*transaction).replaceTable))
}

// AddPrepared is like Add, but if the kernel's table differs, it adds the Table that prepare returns.
func (t Table) AddPrepared(n *NS, prepare func() (Table, error)) error {
	if t.isInstalled(n) {
		return errSame
	}
	t, err := prepare()
	if err != nil {
		return err
	}
	return t.Add(n)
}

// Put is like Add, but replaces the whole table if the table lacks the seal of t. If only the field Of has changed, Add
// would accept the table, and the table would keep its old seals.
func (t Table) Put(n *NS) error {
	if t.isInstalled(n) {
		return errSame
	}
	return t.addModuleNames(t.install(n, (*transaction).replaceTable))
}

// ErrNoModule reports that the kernel has nftables, but lacks a part of it that a table needs.
var ErrNoModule = errors.New("this kernel lacks a part of nftables")

// addModuleNames completes an error about a missing module: it adds the names of the modules that the table needs. A
// kernel that could not load a module answers each message with "no such file or directory" (nft_expr_type_get,
// nf_tables_chain_type_lookup).
func (t Table) addModuleNames(err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	var modules []string
	text := strings.ReplaceAll(t.String(), "\t", " ")
	for _, m := range []struct{ name, word string }{
		{"nft_chain_nat", "type nat"}, {"nft_nat", "snat"}, {"nft_masq", "masquerade"}, {"nft_ct", " ct "},
		{"nft_fib_" + t.Family, "fib "},
		{"nft_counter until Linux 5.16", "counter "}, {"nft_reject_" + t.Family, "reject "},
	} {
		if strings.Contains(text, m.word) {
			modules = append(modules, m.name)
		}
	}
	return fmt.Errorf("%w (one of the modules %s): %w", ErrNoModule, strings.Join(modules, ", "), err)
}

// install commits a transaction with the requests of addFirst and addContent, in this order.
func (t Table) install(n *NS, addFirst func(*transaction)) error {
	x, err := t.newTransaction()
	if err != nil {
		return err
	}
	addFirst(x)
	if err := t.addContent(x); err != nil {
		return err
	}
	return n.commit(x)
}

func (t Table) addContent(x *transaction) error {
	t.addSeals(x)
	for _, c := range t.Chains {
		if err := c.add(x); err != nil {
			return err
		}
	}
	return nil
}

// Del deletes the table. It first asks whether the table exists: without a table, the transaction would fail, and the
// kernel would then wait 10 ms (__nf_tables_abort: synchronize_rcu).
func (t Table) Del(n *NS) error {
	if _, err := t.getTable(n); isNotExist(err) {
		return err
	}
	x, err := t.newTransaction()
	if err != nil {
		return err
	}
	x.addTableRequest(unix.NFT_MSG_DELTABLE, 0)
	return n.commit(x)
}

// Check compares the rules of the kernel's table with the rules of the Table t. It compares only the fingerprints of
// the rules (see ruleFingerprint). So one request is enough for all rules, and Check decodes no expressions. Check then
// compares the types, hooks, priorities and policies of the chains.
func (t Table) Check(n *NS) error {
	got, err := t.readFingerprints(n)
	if err != nil {
		return err
	}
	var want []ruleFingerprint
	if t.Others {
		t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c Chain) bool {
			return c.Alike && isNotExist(c.check(n, t))
		})
	}
	if t.More {
		got = slices.DeleteFunc(got, func(f ruleFingerprint) bool {
			return !slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Name == f.chain })
		})
	}
	for _, c := range t.Chains {
		want = append(want, c.fingerprints()...)
	}
	if t.Others {
		got, want = t.unifyAlike(got), t.unifyAlike(want)
		got = slices.DeleteFunc(got, func(f ruleFingerprint) bool { return f.isOurs() && !slices.Contains(want, f) })
	}
	switch {
	case slices.Equal(got, want):
		return t.checkCalled(n)
	case len(got) == 0:
		return fmt.Errorf("the table has no rules: %w", fs.ErrNotExist)
	}
	return ErrOtherRules
}

// Intact returns an error if another program has changed the kernel's table. It needs the Chains of t, but not their
// Rules. The table must exist, and must not be dormant. Each chain of t must exist with the type, hook, priority and
// policy that t gives. Each of these chains must have rules, and all rules of the table must be ours.
func (t Table) Intact(n *NS) error {
	if err := t.checkAwake(n); err != nil {
		return err
	}
	got, err := t.readFingerprints(n)
	if err != nil {
		return err
	}
	for _, c := range t.Chains {
		if err := c.check(n, t); err != nil {
			return err
		}
		if !slices.ContainsFunc(got, func(f ruleFingerprint) bool { return f.chain == c.Name }) {
			return fmt.Errorf("the chain %s of the table %s has no rules: %w", c.Name, t.Name, fs.ErrNotExist)
		}
	}
	if i := slices.IndexFunc(got, func(f ruleFingerprint) bool { return !f.isOurs() }); i >= 0 {
		return fmt.Errorf("chain %s of the table %s, in which another program has made a rule: %w", got[i].chain,
			t.Name, ErrOtherRules)
	}
	return nil
}

// unifyAlike replaces our rules of each chain whose field Alike is true by one rule. So Check does not see whether
// these rules differ.
func (t Table) unifyAlike(rules []ruleFingerprint) []ruleFingerprint {
	for i, f := range rules {
		if f.isOurs() && slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Alike && c.Name == f.chain }) {
			rules[i].comment = "alike"
		}
	}
	return slices.Compact(rules)
}

// ErrOtherRules reports that the kernel's table has other rules than it should have.
var ErrOtherRules = errors.New("the rules differ from those of the plugin")

// checkCalled returns an error if the kernel's table is dormant, or if a chain has another type, hook, priority or
// policy than in t.
func (t Table) checkCalled(n *NS) error {
	if err := t.checkAwake(n); err != nil {
		return err
	}
	for _, c := range t.Chains {
		if err := c.check(n, t); err != nil {
			return err
		}
	}
	return nil
}

// checkAwake returns an error if the kernel's table is dormant: the kernel then does not call its chains.
func (t Table) checkAwake(n *NS) error {
	msg, err := t.getTable(n)
	if err != nil {
		return err
	}
	for typ, value := range attrsOf(msg) {
		if typ == unix.NFTA_TABLE_FLAGS && bigEndianUint(value)&unix.NFT_TABLE_F_DORMANT != 0 {
			return errors.New("the table is dormant")
		}
	}
	return nil
}

// getTable returns the attributes of the kernel's table itself, without chains and rules.
func (t Table) getTable(n *NS) ([]byte, error) {
	return t.getObject(n, unix.NFT_MSG_GETTABLE, attrString(unix.NFTA_TABLE_NAME, t.Name))
}

// getObject asks the kernel for one object of nftables, and returns its attributes. typ is the type of the request, and
// selector names the object.
func (t Table) getObject(n *NS, typ int, selector ...attribute) ([]byte, error) {
	msgs, err := n.sendRequest(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|typ, 0, 0,
		&nl.Nfgenmsg{NfgenFamily: t.family()}, selector...)
	if err == nil && (len(msgs) != 1 || len(msgs[0]) < nl.SizeofNfgenmsg) {
		err = fmt.Errorf("netlink sent %d answers about one object", len(msgs))
	}
	if err != nil {
		return nil, err
	}
	return msgs[0][nl.SizeofNfgenmsg:], nil
}

// Has returns a function that reports whether the kernel's table has all rules of a Chain. The method Has itself reads
// the rules, so the function sends no request.
func (t Table) Has(n *NS) (func(Chain) bool, error) {
	got, err := t.readFingerprints(n)
	if err != nil && !isNotExist(err) {
		return nil, err
	}
	return func(c Chain) bool {
		return !slices.ContainsFunc(c.fingerprints(), func(f ruleFingerprint) bool { return !slices.Contains(got, f) })
	}, nil
}

func (t Table) readFingerprints(n *NS) ([]ruleFingerprint, error) {
	msgs, err := t.listRules(n)
	if err != nil {
		return nil, err
	}
	found := make([]ruleFingerprint, len(msgs))
	for i, m := range msgs {
		for typ, value := range attrsOf(m[nl.SizeofNfgenmsg:]) {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				found[i].chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				found[i].comment = decodeComment(value)
			}
		}
	}
	return found, nil
}

// listRules returns the kernel's messages about the rules of the table, or of the chain that the selector names.
func (t Table) listRules(n *NS, selector ...attribute) ([][]byte, error) {
	return n.dumpObjects(unix.NFT_MSG_GETRULE, t.family(), append([]attribute{attrString(unix.NFTA_RULE_TABLE, t.Name)},
		selector...)...)
}

// dumpObjects asks the kernel for those nftables objects of a family that match selector. typ is the type of the
// request. Each answer begins with a struct nfgenmsg, whose first byte is the family of the object. The attributes of
// the object follow.
func (n *NS) dumpObjects(typ int, family uint8, selector ...attribute) ([][]byte, error) {
	msgs, err := n.sendRequest(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_DUMP, 0,
		&nl.Nfgenmsg{NfgenFamily: family}, selector...)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			return nil, fmt.Errorf("netlink sent %d bytes, which are no object of nftables", len(m))
		}
	}
	return msgs, nil
}

// Tables lists the tables of nftables in the form "inet filter".
func (n *NS) Tables() ([]string, error) {
	msgs, err := n.dumpObjects(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("%s: list tables: %w", n.Name, err)
	}
	all := make([]string, len(msgs))
	for i, m := range msgs {
		all[i] = nftName(m[0], attrAt(m[nl.SizeofNfgenmsg:], unix.NFTA_TABLE_NAME))
	}
	return all, nil
}

func nftName(family uint8, name []byte) string {
	return cmp.Or(tableFamilies.nameOf(uint32(family)), strconv.Itoa(int(family))) + " " + unix.ByteSliceToString(name)
}

// family returns the number of the table's family, or 0 if there is no such family.
func (t Table) family() uint8 {
	number, _ := tableFamilies.numberOf(t.Family)
	return uint8(number)
}

var tableFamilies = nameTable{{"inet", unix.NFPROTO_INET}, {"ip", unix.NFPROTO_IPV4}, {"ip6", unix.NFPROTO_IPV6},
	{"arp", unix.NFPROTO_ARP}}
