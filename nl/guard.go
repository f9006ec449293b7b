// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"golang.org/x/sys/unix"
)

// A Guard drops packets that slaves of a link send to the namespace of the link.
//
// In mode l2, ipvlan gives some frames of a slave to its master, as if they had arrived there (ipvlan_xmit_mode_l2).
// The destination and the source of such a frame are the same MAC address: the master's own, or a group's, such as
// ff:ff:ff:ff:ff:ff. The kernel takes all others for another host's. Any program with a packet socket can send such a
// frame, with any source inside. No frame from outside has either source.
//
// So the Guard drops IPv4, IPv6 and ARP that have arrived by the link from its own MAC address. On any link, it drops
// packets whose source is the MAC address of a group. The guard drops packets in netfilter, after ipvlan, so packets to
// slaves cost nothing more. A filter of tc would see other protocols, too, but it would cost each packet to a slave.
// And a slave can bypass such a filter. A packet that has gone through a link of type ifb skips tc and netfilter's
// ingress at the next link (tc_skip_classify).
//
// All Guards of a namespace are elements of a set, in a table for each of two families. Deleting one does nothing:
// another slave may need it. When a Guard is added, the elements of links that are gone are deleted.
type Guard struct {
	Link  string
	Index int    // if these two are known, Check does not ask for the link
	MAC   string // the same
}

// GuardTable is the name of the tables: no network can have such a name. GuardSet is the name of the set in both.
const (
	GuardTable = OwnTable + "._guard"
	GuardSet   = "masters"
)

func (g Guard) String() string {
	mac := g.MAC
	if mac == "" {
		mac = "$(cat /sys/class/net/" + g.Link + "/address)"
	}
	var lines string
	for i, t := range guardTables(nil) {
		if i > 0 {
			lines += "\n\t"
		}
		lines += fmt.Sprintf("nft add element %s %s %s { %s . %s }", t.Family, t.Name, GuardSet, g.Link, mac)
	}
	return lines
}

// guardTables are the two tables, with these elements in their sets. In the family inet the chain is before the kernel
// joins fragments, at -400. The veths of pods have no slaves.
func guardTables(members []guarded) []Table {
	drop := []NFRule{{arrivedFromItself(members), Count(), Drop()}, {fromGroup(), Count(), Drop()}}
	chain := Chain{Name: "guard", Type: "filter", Hook: "prerouting", Priority: -450,
		Rules: append([]NFRule{{IIFGroup(OwnGroup), Accept()}}, drop...)}
	arp := Chain{Name: "guard", Type: "filter", Hook: "input", Rules: drop}
	return []Table{{Family: "inet", Name: GuardTable, Chains: []Chain{chain}},
		{Family: "arp", Name: GuardTable, Chains: []Chain{arp}}}
}

// A guarded is an element of the set, in registers of 4 bytes. The element has the index of a link in the kernel's byte
// order, and a MAC address.
type guarded [12]byte

func (g Guard) element(n *NS) (e guarded, err error) {
	index, mac := g.Index, g.MAC
	if mac == "" {
		l, err := n.SeenLink(g.Link)
		if err != nil {
			return e, err
		}
		index, mac = l.Index, l.MAC
	}
	hw, err := net.ParseMAC(mac)
	if err != nil || len(hw) != 6 {
		return e, fmt.Errorf("link %s has no MAC address of Ethernet: %q", g.Link, mac)
	}
	binary.NativeEndian.PutUint32(e[:], uint32(index))
	copy(e[4:], hw)
	return e, nil
}

func (e guarded) index() int { return int(binary.NativeEndian.Uint32(e[:])) }

// Add adds the Guard, with the tables if they are not there. If the set has the element, Add does not look at the
// rules: Check does.
func (g Guard) Add(n *NS) error {
	e, err := g.element(n)
	if err != nil {
		return err
	}
	if guardTables(nil)[0].member(n, e) == nil {
		return errSame
	}
	return n.guard(e)
}

// Restore adds the Guard, and replaces the tables if anything of them differs.
func (g Guard) Restore(n *NS) error {
	if g.Check(n) == nil {
		return nil
	}
	e, err := g.element(n)
	if err != nil {
		return err
	}
	return n.guard(e)
}

// Del does nothing.
func (Guard) Del(*NS) error { return nil }

// Check looks for the element in both tables, and compares their rules.
func (g Guard) Check(n *NS) error {
	e, err := g.element(n)
	if err != nil {
		return err
	}
	for _, t := range guardTables(nil) {
		if err := t.member(n, e); err != nil {
			return fmt.Errorf("pods can send to their node past security groups: %s %s: %w", t.Family, t.Name, err)
		}
		if err := t.Check(n); err != nil {
			return fmt.Errorf("pods can send to their node past security groups: %s %s: %w", t.Family, t.Name, err)
		}
	}
	return nil
}

// guard makes both tables, with the elements of all links that are there, in one transaction. The kernel refuses it if
// another process has changed any table since the elements were read: that may have been another Guard.
func (n *NS) guard(e guarded) (err error) {
	for range 100 {
		var generation uint32
		if generation, err = n.generation(); err != nil {
			return err
		}
		members, failed := n.members()
		if failed != nil {
			return failed
		}
		if !slices.Contains(members, e) {
			members = append(members, e)
		}
		x := &transaction{generation: generation}
		for _, t := range guardTables(members) {
			if err := t.replace(x); err != nil {
				return err
			}
		}
		if err = n.commit(x); !errors.Is(err, unix.ERESTART) {
			return guardTables(nil)[0].lacking(err)
		}
	}
	return err
}

// generation is the number of the state of all tables.
func (n *NS) generation() (uint32, error) {
	msg, err := Table{}.get(n, unix.NFT_MSG_GETGEN)
	return ordered(inside(msg, unix.NFTA_GEN_ID)), err
}

// members are the elements of the set whose links are there.
func (n *NS) members() (found []guarded, err error) {
	t := guardTables(nil)[0]
	if _, err := t.itself(n); absent(err) {
		return nil, nil
	}
	msgs, err := n.dump(unix.NFT_MSG_GETSETELEM, t.family(), t.ofSet()...)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	links, err := n.exactLinks()
	for _, m := range msgs {
		for _, value := range attrsOf(inside(m[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			var e guarded
			key := inside(value, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
			if copy(e[:], key) == len(e) && slices.ContainsFunc(links,
				func(l Link) bool { return l.Index == e.index() }) {
				found = append(found, e)
			}
		}
	}
	return found, err
}

// ofSet are the attributes of a request about elements of the set.
func (t Table) ofSet() []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, GuardSet)}
}

// member asks for one element of the set.
func (t Table) member(n *NS, e guarded) error {
	key := nested(1, content(unix.NFTA_SET_ELEM_KEY, e[:]))
	msg, err := t.get(n, unix.NFT_MSG_GETSETELEM, append(t.ofSet(), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, key))...)
	if err == nil && !bytes.Contains(msg, e[:]) {
		err = fs.ErrNotExist
	}
	return err
}

// replace adds the table to a transaction, in the place of the one that may be there.
func (t Table) replace(x *transaction) error {
	own, err := t.begin()
	if err != nil {
		return err
	}
	x.family, x.table = own.family, own.table
	x.replaceTable()
	return t.fill(x)
}

// arrivedFromItself matches frames whose source is the MAC address of the link by which they have arrived, if the set
// has that link.
func arrivedFromItself(members []guarded) Term {
	return Term{"iif . ether saddr @" + GuardSet, func(x *transaction) ([]attribute, error) {
		const first, second = unix.NFT_REG32_00, unix.NFT_REG32_01
		x.masters(members)
		return exprs(
			expression("meta", attrOrdered(unix.NFTA_META_KEY, unix.NFT_META_IIF),
				attrOrdered(unix.NFTA_META_DREG, first)),
			expression("payload", attrOrdered(unix.NFTA_PAYLOAD_DREG, second),
				attrOrdered(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_LL_HEADER),
				attrOrdered(unix.NFTA_PAYLOAD_OFFSET, 6), attrOrdered(unix.NFTA_PAYLOAD_LEN, 6)),
			expression("lookup", attrOrdered(unix.NFTA_LOOKUP_SREG, first), attrString(unix.NFTA_LOOKUP_SET, GuardSet),
				attrOrdered(unix.NFTA_LOOKUP_SET_ID, x.sets))), nil
	}}
}

// fromGroup matches frames from the MAC address of a group.
func fromGroup() Term {
	return term("meta iiftype ether ether saddr & 01:00:00:00:00:00 == 01:00:00:00:00:00", func() []attribute {
		return exprs(meta(unix.NFT_META_IIFTYPE), equal(binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)),
			payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 1), bitwise([]byte{1}, []byte{0}), equal([]byte{1}))
	})
}

// masters adds the set with its elements. Its type is as in nft(8), which prints the elements by their type: ifindex .
// ether_addr.
func (x *transaction) masters(members []guarded) {
	const typ, size = 20<<6 | 9, 12
	x.sets++
	x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
		attrString(unix.NFTA_SET_NAME, GuardSet),
		attrOrdered(unix.NFTA_SET_KEY_TYPE, typ), attrOrdered(unix.NFTA_SET_KEY_LEN, size),
		attrOrdered(unix.NFTA_SET_ID, x.sets))
	var list []attribute
	for i, e := range members {
		list = append(list, nested(i+1, content(unix.NFTA_SET_ELEM_KEY, e[:])))
	}
	x.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_ELEM_LIST_TABLE, x.table),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, GuardSet),
		attrOrdered(unix.NFTA_SET_ELEM_LIST_SET_ID, x.sets), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
}
