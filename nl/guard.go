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
// In mode l2, ipvlan gives some frames of a slave to its master, as if they had arrived by the master
// (ipvlan_xmit_mode_l2). The destination and the source of such a frame are the same MAC address. This MAC address is
// the master's own address, or the address of a group, such as ff:ff:ff:ff:ff:ff. The kernel drops all other frames,
// because it takes them for frames to another host. Any program with a packet socket can send such a frame, with any IP
// address as the source. No frame from outside has one of these two sources.
//
// So the Guard drops packets of IPv4, IPv6 and ARP that have arrived by the link and whose source is the link's own MAC
// address. On any link, the Guard drops packets whose source is the MAC address of a group. The Guard drops packets in
// netfilter, after ipvlan, so packets to slaves do not cost more. A filter of tc would also see other protocols, but
// each packet to a slave would cost more. A slave can also bypass such a filter. A packet that has gone through a link
// of type ifb skips tc and netfilter's ingress at the next link (tc_skip_classify).
//
// All Guards of a namespace are elements of a set. Two tables have this set, one of the family inet and one of the
// family arp. Del does nothing, because another slave may need the Guard. When Add adds a Guard, it deletes elements
// whose links are gone.
type Guard struct {
	Link  string
	Index int    // of the link; used if MAC is set: then no method has to ask for the link
	MAC   string // "" if the caller does not know it
}

// GuardTable is the name of the two tables. No network's table can have this name. GuardSet is the name of the set in
// both tables.
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

// guardTables returns the two tables, with members as the elements of their sets. The chain of the family inet comes
// before the priority -400, at which the kernel joins fragments. This chain accepts all packets that arrive by links of
// the group OwnGroup. These links are ends of veth pairs, and have no slaves.
func guardTables(members []guarded) []Table {
	drop := []NFRule{{arrivedFromItself(members), Count(), Drop()}, {fromGroup(), Count(), Drop()}}
	chain := Chain{Name: "guard", Type: "filter", Hook: "prerouting", Priority: -450,
		Rules: append([]NFRule{{IIFGroup(OwnGroup), Accept()}}, drop...)}
	arp := Chain{Name: "guard", Type: "filter", Hook: "input", Rules: drop}
	return []Table{{Family: "inet", Name: GuardTable, Chains: []Chain{chain}},
		{Family: "arp", Name: GuardTable, Chains: []Chain{arp}}}
}

// A guarded is an element of the set: the index of a link in the CPU's byte order, and a MAC address. It fills three
// registers of 4 bytes.
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

// Add adds the Guard, and the tables if they are not there. If the set already has the element, Add does not check the
// rules, but Check does.
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

// Restore adds the Guard if it is missing. Restore also replaces the tables if a rule or a chain differs.
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

// Check returns an error if a table lacks the element, or if the rules of a table differ.
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

// guard makes both tables in one transaction, with e and with the earlier elements whose links exist. If another
// process has changed any table since guard read the elements, that process may have added another Guard. The kernel
// then refuses the transaction, and guard tries again.
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

// generation returns the kernel's number of the present state of all tables. Each change gives the state another
// number.
func (n *NS) generation() (uint32, error) {
	msg, err := Table{}.get(n, unix.NFT_MSG_GETGEN)
	return ordered(inside(msg, unix.NFTA_GEN_ID)), err
}

// members returns the elements of the set whose links exist.
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

// ofSet returns the attributes of a request about elements of the set.
func (t Table) ofSet() []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, GuardSet)}
}

// member asks for one element of the set. The error is fs.ErrNotExist if the set does not have the element.
func (t Table) member(n *NS, e guarded) error {
	key := nested(1, content(unix.NFTA_SET_ELEM_KEY, e[:]))
	msg, err := t.get(n, unix.NFT_MSG_GETSETELEM, append(t.ofSet(), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, key))...)
	if err == nil && !bytes.Contains(msg, e[:]) {
		err = fs.ErrNotExist
	}
	return err
}

// replace adds requests to a transaction that replace the table, or add it if it is not there.
func (t Table) replace(x *transaction) error {
	own, err := t.begin()
	if err != nil {
		return err
	}
	x.family, x.table = own.family, own.table
	x.replaceTable()
	return t.fill(x)
}

// arrivedFromItself matches frames that have arrived by a link of the set, and whose source is the MAC address of this
// link.
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

// fromGroup matches Ethernet frames whose source is the MAC address of a group.
func fromGroup() Term {
	return term("meta iiftype ether ether saddr & 01:00:00:00:00:00 == 01:00:00:00:00:00", func() []attribute {
		return exprs(meta(unix.NFT_META_IIFTYPE), equal(binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)),
			payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 1), bitwise([]byte{1}, []byte{0}), equal([]byte{1}))
	})
}

// masters adds the set GuardSet, with members as its elements. The type of the set is nft(8)'s type "ifindex .
// ether_addr", so that nft(8) can print the elements.
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
