// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Table is a table of nftables that is ours alone. It is installed, compared
// and replaced whole, each in one transaction. It has at least one rule, because
// it is by its rules that one in the kernel is known.
type Table struct {
	Family string // inet, ip or ip6
	Name   string
	Chains []Chain
	More   bool // Check passes over chains that are not among these
}

// An NFRule is a rule of netfilter: what all its terms match, the last of them act on.
type NFRule []Term

func (r NFRule) String() string {
	words := make([]string, len(r))
	for i, t := range r {
		words[i] = t.text
	}
	return strings.Join(words, " ")
}

// String is the table as nft(8) takes it for a command, quoted for the shell.
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

// Add installs the table, in the place of one of its name that differs: that has
// been flushed, or is of another version. The check before is what makes a
// second Add cheap.
func (t Table) Add(n *NS) error {
	err := t.Check(n)
	if err == nil {
		return errSame
	}
	if errors.Is(err, fs.ErrNotExist) {
		// To delete is slow, so do not where there is nothing.
		if err = t.install(n, (*nftables.Conn).CreateTable); !errors.Is(err, fs.ErrExist) {
			return t.lacking(err)
		}
	}
	return t.lacking(t.install(n, func(c *nftables.Conn, k *nftables.Table) *nftables.Table {
		c.AddTable(k) // or, if somebody has flushed it meanwhile, there is none to delete
		c.DelTable(k)
		return c.AddTable(k)
	}))
}

// ErrNoModule says that the kernel has nftables, but not all of it that a table takes.
var ErrNoModule = errors.New("this kernel lacks a part of nftables")

// lacking names the modules, one of which the kernel has not and could not load: it answers
// the whole transaction with "no such file or directory" then (nft_expr_type_get,
// nf_tables_chain_type_lookup), for each message of it.
func (t Table) lacking(err error) error {
	if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EOPNOTSUPP) {
		return err
	}
	var modules []string
	text := t.String()
	for _, m := range []struct{ name, word string }{
		{"nft_chain_nat", "type nat"}, {"nft_nat", "snat"}, {"nft_masq", "masquerade"}, {"nft_ct", " ct "}, {"nft_fib_" + t.Family, "fib "},
		{"nft_counter (until Linux 5.16)", "counter "},
	} {
		if strings.Contains(text, m.word) {
			modules = append(modules, m.name)
		}
	}
	return fmt.Errorf("%w, one of the modules %s: %w", ErrNoModule, strings.Join(modules, ", "), err)
}

// install begins a transaction and adds what is in the table.
func (t Table) install(n *NS, begin func(*nftables.Conn, *nftables.Table) *nftables.Table) error {
	family, ok := tableFamilies[t.Family]
	if !ok {
		return fmt.Errorf("unknown family of tables %q", t.Family)
	}
	c, err := n.nftables()
	if err != nil {
		return err
	}
	k := begin(c, &nftables.Table{Family: family, Name: t.Name})
	for _, chain := range t.Chains {
		if err := chain.add(c, k); err != nil {
			n.forget(c) // and what it has not sent
			return err
		}
	}
	err = c.Flush()
	if errno, ok := errors.AsType[unix.Errno](err); ok { // of the first message, and it says all
		err = errno
	}
	return kernel(err)
}

// forget closes the socket for nftables.
func (n *NS) forget(c *nftables.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nft = nil
	_ = c.CloseLasting()
}

// nftables returns a socket that stays open as long as n: when one is closed the
// kernel waits until all that was deleted is freed, 10 ms or more, and a
// namespace that is about to be closed has other things to wait for meanwhile.
func (n *NS) nftables() (*nftables.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.nft != nil {
		return n.nft, nil
	}
	c, err := nftables.New(nftables.WithNetNSFd(int(n.fd)), nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables in %s: %w", n.Name, err)
	}
	n.nft = c
	return c, nil
}

// Del deletes the table. It asks first: a transaction that fails, because there is none,
// has the kernel wait for everybody (__nf_tables_abort: synchronize_rcu, 10 ms).
func (t Table) Del(n *NS) error {
	if _, err := t.itself(n); absent(err) {
		return err
	}
	c, err := n.nftables()
	if err != nil {
		return err
	}
	c.DelTable(&nftables.Table{Family: tableFamilies[t.Family], Name: t.Name})
	return kernel(c.Flush())
}

// Check compares the rules in the kernel with those of the table by their
// fingerprints: one question, about this table only, and no decoding. Of a table that has
// them it asks whether anything comes to them, and what becomes of what matches none.
func (t Table) Check(n *NS) error {
	got, err := t.fingerprints(n)
	if err != nil {
		return err
	}
	var want []fingerprinted
	if t.More {
		got = slices.DeleteFunc(got, func(f fingerprinted) bool {
			return !slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Name == f.chain })
		})
	}
	for _, c := range t.Chains {
		want = append(want, c.fingerprints()...)
	}
	switch {
	case slices.Equal(got, want):
		return t.works(n)
	case len(got) == 0:
		return fmt.Errorf("there are no such rules: %w", fs.ErrNotExist)
	}
	return ErrOtherRules
}

// ErrOtherRules is what Check says of a table with other rules than it should have.
var ErrOtherRules = errors.New("the rules differ")

// works reports a table that is dormant, whose chains nothing calls, and a chain that somebody
// has changed without its rules.
func (t Table) works(n *NS) error {
	msg, err := t.itself(n)
	if err != nil {
		return err
	}
	for typ, value := range attrsOf(msg) {
		if typ == unix.NFTA_TABLE_FLAGS && ordered(value)&unix.NFT_TABLE_F_DORMANT != 0 {
			return errors.New("the table is dormant")
		}
	}
	for _, c := range t.Chains {
		if err := c.check(n, t); err != nil {
			return err
		}
	}
	return nil
}

// itself asks for the table.
func (t Table) itself(n *NS) ([]byte, error) {
	return t.get(n, unix.NFT_MSG_GETTABLE, attrString(unix.NFTA_TABLE_NAME, t.Name))
}

// get asks for the one thing of the table's family that some attributes name, and returns
// its own.
func (t Table) get(n *NS, typ int, which ...nl.NetlinkRequestData) ([]byte, error) {
	data := append([]nl.NetlinkRequestData{&nl.Nfgenmsg{NfgenFamily: uint8(tableFamilies[t.Family])}}, which...)
	msgs, err := n.request(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|typ, 0, 0, data...)
	if err == nil && (len(msgs) != 1 || len(msgs[0]) < nl.SizeofNfgenmsg) {
		err = fmt.Errorf("%d answers about one thing", len(msgs))
	}
	if err != nil {
		return nil, err
	}
	return msgs[0][nl.SizeofNfgenmsg:], nil
}

// Has returns what tells of a chain whether all its rules are in the kernel's table of this
// name, which may have more. It reads that once.
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
	msgs, err := n.request(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, 0,
		&nl.Nfgenmsg{NfgenFamily: uint8(tableFamilies[t.Family])}, attrString(unix.NFTA_RULE_TABLE, t.Name))
	if err != nil {
		return nil, err
	}
	found := make([]fingerprinted, len(msgs))
	for i, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			return nil, fmt.Errorf("%d bytes are no rule", len(m))
		}
		for typ, value := range attrsOf(m[nl.SizeofNfgenmsg:]) {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				found[i].chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				found[i].comment, _ = userdata.GetString(value, userdata.TypeComment)
			}
		}
	}
	return found, nil
}

// Tables lists the tables of nftables as nft(8) does: "inet filter".
func (n *NS) Tables() ([]string, error) {
	c, err := n.nftables()
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil, fmt.Errorf("%s: list tables: %w", n.Name, err)
	}
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = nftName(t)
	}
	return names, nil
}

// nftName is a table as nft(8) names it.
func nftName(t *nftables.Table) string {
	family := fmt.Sprint(t.Family)
	for name, f := range tableFamilies {
		if f == t.Family {
			family = name
		}
	}
	return family + " " + t.Name
}

var tableFamilies = map[string]nftables.TableFamily{
	"inet": nftables.TableFamilyINet, "ip": nftables.TableFamilyIPv4, "ip6": nftables.TableFamilyIPv6,
}
