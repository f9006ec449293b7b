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

// A Table is a table of nftables that only we use. Its methods install, compare and replace the whole table. An
// installation or a replacement is one transaction. The table must have at least one rule, because Check identifies the
// kernel's table by its rules.
type Table struct {
	Family string // inet, ip, ip6 or arp
	Name   string
	Chains []Chain
	Of     string // a text for which the table was made, besides its rules: see [Table.Sealed]
	More   bool   // Check ignores chains that are not in Chains
	// Others makes Check accept a table that was made for another configuration. The kernel's table may have further
	// rules of ours. A chain that has Alike set may be missing, or may have other rules of ours, as many as this Table
	// has in the chain.
	Others bool
}

// An NFRule is a rule of netfilter. Its last terms act on the packets that all other terms match.
type NFRule []Term

func (r NFRule) String() string {
	words := make([]string, len(r))
	for i, t := range r {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}

// String is the table as a command of nft(8), quoted for the shell.
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

// Add installs the table. Add replaces a table of the same name that differs: another program may have flushed that
// table, or another version may have made it. Add first checks the kernel's table, so Add of an unchanged table is
// cheap.
func (t Table) Add(n *NS) error {
	if t.stands(n) {
		return errSame
	}
	err := t.Check(n)
	if err == nil { // an earlier release has made it, without a seal
		return cmp.Or(t.seal(n), errSame)
	}
	if errors.Is(err, fs.ErrNotExist) {
		// Deletion is slow, so do not delete a table that is not there.
		if err = t.install(n, func(x *transaction) { x.itself(unix.NFT_MSG_NEWTABLE, addNew) }); !errors.Is(err,
			fs.ErrExist) {
			return t.lacking(err)
		}
		if t.stands(n) { // another process has just added it
			return errSame
		}
	}
	return t.lacking(t.install(n, (*transaction).replaceTable))
}

// AddPrepared is Add. But if the kernel's table differs, AddPrepared first calls prepare, and adds the table that
// prepare returns.
func (t Table) AddPrepared(n *NS, prepare func() (Table, error)) error {
	if t.stands(n) {
		return errSame
	}
	t, err := prepare()
	if err != nil {
		return err
	}
	return t.Add(n)
}

// Put is Add, but after Put the kernel's table has only the seals of t. If the kernel's table has the same rules and
// was made for another Of, Add keeps the old seal, and adds the seals of t.
func (t Table) Put(n *NS) error {
	if t.stands(n) {
		return errSame
	}
	return t.lacking(t.install(n, (*transaction).replaceTable))
}

// ErrNoModule reports that the kernel has nftables, but not all parts that a table needs.
var ErrNoModule = errors.New("this kernel lacks a part of nftables")

// lacking adds the names of the table's modules to an error that shows that the kernel lacks one of them. A kernel that
// could not load a module answers each message of the transaction with "no such file or directory" (nft_expr_type_get,
// nf_tables_chain_type_lookup).
func (t Table) lacking(err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	var modules []string
	text := t.String()
	for _, m := range []struct{ name, word string }{
		{"nft_chain_nat", "type nat"}, {"nft_nat", "snat"}, {"nft_masq", "masquerade"}, {"nft_ct", " ct "},
		{"nft_fib_" + t.Family, "fib "},
		{"nft_counter (until Linux 5.16)", "counter "}, {"nft_reject_" + t.Family, "reject "},
	} {
		if strings.Contains(text, m.word) {
			modules = append(modules, m.name)
		}
	}
	return fmt.Errorf("%w, one of the modules %s: %w", ErrNoModule, strings.Join(modules, ", "), err)
}

// install begins a transaction, adds the chains of the table, and commits it.
func (t Table) install(n *NS, begin func(*transaction)) error {
	x, err := t.begin()
	if err != nil {
		return err
	}
	begin(x)
	if err := t.fill(x); err != nil {
		return err
	}
	return n.commit(x)
}

// fill adds the seals and the chains of the table to a transaction.
func (t Table) fill(x *transaction) error {
	t.addSeals(x)
	for _, c := range t.Chains {
		if err := c.add(x); err != nil {
			return err
		}
	}
	return nil
}

// Del deletes the table. It first asks whether the table exists, because the kernel waits for all readers after a
// transaction that fails (__nf_tables_abort: synchronize_rcu, 10 ms).
func (t Table) Del(n *NS) error {
	if _, err := t.itself(n); absent(err) {
		return err
	}
	x, err := t.begin()
	if err != nil {
		return err
	}
	x.itself(unix.NFT_MSG_DELTABLE, 0)
	return n.commit(x)
}

// Check compares the kernel's rules with the table's rules by their fingerprints. The comparison takes one request,
// about this table only, and decodes no expressions. If the rules are equal, Check also checks that the kernel calls
// the chains, and with which policy.
func (t Table) Check(n *NS) error {
	got, err := t.fingerprints(n)
	if err != nil {
		return err
	}
	var want []fingerprinted
	if t.Others {
		t.Chains = slices.DeleteFunc(slices.Clone(t.Chains), func(c Chain) bool {
			return c.Alike && absent(c.check(n, t))
		})
	}
	if t.More {
		got = slices.DeleteFunc(got, func(f fingerprinted) bool {
			return !slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Name == f.chain })
		})
	}
	for _, c := range t.Chains {
		want = append(want, c.fingerprints()...)
	}
	if t.Others {
		got, want = t.alike(got), t.alike(want)
		got = slices.DeleteFunc(got, func(f fingerprinted) bool { return f.ours() && !slices.Contains(want, f) })
	}
	switch {
	case slices.Equal(got, want):
		return t.works(n)
	case len(got) == 0:
		return fmt.Errorf("the table has no rules: %w", fs.ErrNotExist)
	}
	return ErrOtherRules
}

// Intact returns an error if the kernel shows that a table has changed since we made it. The caller need not know the
// rules. The table may be gone or dormant. One of its chains may be gone or empty, or have another hook or policy. Or
// another program may have added a rule.
func (t Table) Intact(n *NS) error {
	if err := t.awake(n); err != nil {
		return err
	}
	got, err := t.fingerprints(n)
	if err != nil {
		return err
	}
	for _, c := range t.Chains {
		if err := c.check(n, t); err != nil {
			return err
		}
		if !slices.ContainsFunc(got, func(f fingerprinted) bool { return f.chain == c.Name }) {
			return fmt.Errorf("the chain %s of the table %s has no rules: %w", c.Name, t.Name, fs.ErrNotExist)
		}
	}
	if i := slices.IndexFunc(got, func(f fingerprinted) bool { return !f.ours() }); i >= 0 {
		return fmt.Errorf("%w in the chain %s of the table %s: one rule is another program's", ErrOtherRules,
			got[i].chain, t.Name)
	}
	return nil
}

// alike gives the same comment to all our rules in chains that have Alike set. So these rules are equal.
func (t Table) alike(rules []fingerprinted) []fingerprinted {
	for i, f := range rules {
		if f.ours() && slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Alike && c.Name == f.chain }) {
			rules[i].comment = "alike"
		}
	}
	return rules
}

// ErrOtherRules is the error of Check about a table with other rules than it should have.
var ErrOtherRules = errors.New("the rules differ")

// works returns an error if the table is dormant, or if another program has changed the hook, the priority or the
// policy of a chain.
func (t Table) works(n *NS) error {
	if err := t.awake(n); err != nil {
		return err
	}
	for _, c := range t.Chains {
		if err := c.check(n, t); err != nil {
			return err
		}
	}
	return nil
}

// awake returns an error if the table is dormant. Then the kernel does not call its chains.
func (t Table) awake(n *NS) error {
	msg, err := t.itself(n)
	if err != nil {
		return err
	}
	for typ, value := range attrsOf(msg) {
		if typ == unix.NFTA_TABLE_FLAGS && ordered(value)&unix.NFT_TABLE_F_DORMANT != 0 {
			return errors.New("the table is dormant")
		}
	}
	return nil
}

// itself asks for the table.
func (t Table) itself(n *NS) ([]byte, error) {
	return t.get(n, unix.NFT_MSG_GETTABLE, attrString(unix.NFTA_TABLE_NAME, t.Name))
}

// get asks for the one object of the table's family that the attributes name, and returns the
// attributes of that object.
func (t Table) get(n *NS, typ int, which ...attribute) ([]byte, error) {
	msgs, err := n.request(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|typ, 0, 0,
		&nl.Nfgenmsg{NfgenFamily: t.family()}, which...)
	if err == nil && (len(msgs) != 1 || len(msgs[0]) < nl.SizeofNfgenmsg) {
		err = fmt.Errorf("netlink sent %d answers about one object", len(msgs))
	}
	if err != nil {
		return nil, err
	}
	return msgs[0][nl.SizeofNfgenmsg:], nil
}

// Has returns a function that reports whether the kernel's table of this name has all rules of a chain. The table may
// have more rules. Has reads the kernel's table once.
func (t Table) Has(n *NS) (func(Chain) bool, error) {
	got, err := t.fingerprints(n)
	if err != nil && !absent(err) {
		return nil, err
	}
	return func(c Chain) bool {
		return !slices.ContainsFunc(c.fingerprints(), func(f fingerprinted) bool { return !slices.Contains(got, f) })
	}, nil
}

// fingerprints reads the chain and the comment of each rule of the table.
func (t Table) fingerprints(n *NS) ([]fingerprinted, error) {
	msgs, err := t.rules(n)
	if err != nil {
		return nil, err
	}
	found := make([]fingerprinted, len(msgs))
	for i, m := range msgs {
		for typ, value := range attrsOf(m[nl.SizeofNfgenmsg:]) {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				found[i].chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				found[i].comment = comment(value)
			}
		}
	}
	return found, nil
}

// rules asks for the rules of the table, or only for the rules of a chain.
func (t Table) rules(n *NS, which ...attribute) ([][]byte, error) {
	return n.dump(unix.NFT_MSG_GETRULE, t.family(), append([]attribute{attrString(unix.NFTA_RULE_TABLE, t.Name)},
		which...)...)
}

// dump asks for all objects of nftables of a type and a family that the attributes are about. Each answer has a header
// and the object's attributes. The header begins with the object's family.
func (n *NS) dump(typ int, family uint8, which ...attribute) ([][]byte, error) {
	msgs, err := n.request(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_DUMP, 0,
		&nl.Nfgenmsg{NfgenFamily: family}, which...)
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

// Tables lists the tables of nftables as nft(8) does: "inet filter".
func (n *NS) Tables() ([]string, error) {
	msgs, err := n.dump(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("%s: list tables: %w", n.Name, err)
	}
	all := make([]string, len(msgs))
	for i, m := range msgs {
		all[i] = nftName(m[0], inside(m[nl.SizeofNfgenmsg:], unix.NFTA_TABLE_NAME))
	}
	return all, nil
}

// nftName returns the name of a table as nft(8) writes it.
func nftName(family uint8, name []byte) string {
	return cmp.Or(tableFamilies.name(uint32(family)), strconv.Itoa(int(family))) + " " + unix.ByteSliceToString(name)
}

// family is the number of the table's family, or 0 if there is no such family.
func (t Table) family() uint8 {
	number, _ := tableFamilies.number(t.Family)
	return uint8(number)
}

var tableFamilies = names{{"inet", unix.NFPROTO_INET}, {"ip", unix.NFPROTO_IPV4}, {"ip6", unix.NFPROTO_IPV6},
	{"arp", unix.NFPROTO_ARP}}
