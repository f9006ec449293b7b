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

// A Guard drops packets that the slaves of an ipvlan master send to the master's namespace.
//
// A slave in mode l2 may send a frame whose source and destination MAC addresses are equal. Then ipvlan handles the
// frame as if it had arrived through the master (ipvlan_xmit_mode_l2). The kernel accepts such a frame if the MAC
// address is the master's own, or a multicast address such as ff:ff:ff:ff:ff:ff. Any program with a packet socket can
// send such frames, with any IP address as the source. A frame from the VPC never has one of these MAC addresses as its
// source.
//
// So a Guard drops packets of IPv4, IPv6 and ARP that arrive through the master with the master's MAC address as their
// source. It also drops packets from a multicast MAC address, through whichever link they arrive. The rules do not slow
// down the packets to slaves in the modes l2 and l3: ipvlan takes these packets before netfilter sees them. A filter of
// tc would see all protocols, but would slow down these packets. A pod could also bypass a filter of tc by a link of
// the type ifb. When this link passes a packet to another link, the kernel skips tc and netfilter's ingress hook at the
// other link (tc_skip_classify).
//
// The Guards of a namespace are the elements of a set. Two tables have this set: one of the family inet, and one of the
// family arp. Del does nothing, because another slave may need the Guard. When Add adds an element, it deletes the
// elements of links that are gone.
type Guard struct {
	Link  string
	Index int    // the index of the link; ignored if MAC is ""
	MAC   string // the link's MAC address; "": the methods ask the kernel for the MAC address and the index
}

// GuardTable is the name of both tables of the Guards. GuardSet is the name of the set in these tables. OwnTableOf
// never returns GuardTable.
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

// guardTables returns the two tables, with their sets. The chain of the family inet has the priority -450. The kernel
// joins fragments later, at the priority -400. So the chain checks each fragment. The chain's first rule accepts all
// packets from the ends of veth pairs (OwnGroup), because these ends have no slaves.
func guardTables(elements []guardElement) []Table {
	drop := []NFRule{{arrivedFromItself(elements), Count(), Drop()}, {fromGroupMAC(), Count(), Drop()}}
	chain := Chain{Name: "guard", Type: "filter", Hook: "prerouting", Priority: -450,
		Rules: append([]NFRule{{IIFGroup(OwnGroup), Accept()}}, drop...)}
	arp := Chain{Name: "guard", Type: "filter", Hook: "input", Rules: drop}
	return []Table{{Family: "inet", Name: GuardTable, Chains: []Chain{chain}},
		{Family: "arp", Name: GuardTable, Chains: []Chain{arp}}}
}

// A guardElement is an element of the set: a link's index in the CPU's byte order, and its MAC address, padded to three
// registers of 4 bytes.
type guardElement [12]byte

func (g Guard) element(n *NS) (e guardElement, err error) {
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
		return e, fmt.Errorf("link %s has no Ethernet MAC address: %q", g.Link, mac)
	}
	binary.NativeEndian.PutUint32(e[:], uint32(index))
	copy(e[4:], hw)
	return e, nil
}

func (e guardElement) index() int { return int(binary.NativeEndian.Uint32(e[:])) }

// Add adds the Guard, and makes the tables if they do not exist. If the table of the family inet has the element, Add
// does nothing. Unlike Check, Add does not compare the rules.
func (g Guard) Add(n *NS) error {
	e, err := g.element(n)
	if err != nil {
		return err
	}
	if guardTables(nil)[0].checkElement(n, e) == nil {
		return errSame
	}
	return n.installGuard(e)
}

// Restore does nothing if Check returns nil. Otherwise, Restore adds the Guard and makes both tables again.
func (g Guard) Restore(n *NS) error {
	if g.Check(n) == nil {
		return nil
	}
	e, err := g.element(n)
	if err != nil {
		return err
	}
	return n.installGuard(e)
}

func (Guard) Del(*NS) error { return nil }

// Check returns an error if the set of a table lacks the element, or if a rule or a chain differs.
func (g Guard) Check(n *NS) error {
	e, err := g.element(n)
	if err != nil {
		return err
	}
	for _, t := range guardTables(nil) {
		err := t.checkElement(n, e)
		if err == nil {
			err = t.Check(n)
		}
		if err != nil {
			return fmt.Errorf("pods can bypass security groups on the way to their node: table %s %s: %w", t.Family,
				t.Name, err)
		}
	}
	return nil
}

// installGuard replaces both tables in one transaction. The new sets have the element e, and each old element whose
// link exists. Another process may add a Guard at the same time. So the transaction contains the generation number that
// the tables had before the elements were read. If a table has changed since, the kernel refuses the transaction, and
// installGuard tries again.
func (n *NS) installGuard(e guardElement) (err error) {
	for range 100 {
		var generation uint32
		if generation, err = n.rulesetGeneration(); err != nil {
			return err
		}
		members, failed := n.liveElements()
		if failed != nil {
			return failed
		}
		if !slices.Contains(members, e) {
			members = append(members, e)
		}
		x := &transaction{generation: generation}
		for _, t := range guardTables(members) {
			if err := t.addReplacement(x); err != nil {
				return err
			}
		}
		if err = n.commit(x); !errors.Is(err, unix.ERESTART) {
			return guardTables(nil)[0].addModuleNames(err)
		}
	}
	return err
}

// rulesetGeneration returns the kernel's generation number of the namespace's tables. Each change of a table increases
// this number.
func (n *NS) rulesetGeneration() (uint32, error) {
	msg, err := Table{}.getObject(n, unix.NFT_MSG_GETGEN)
	return bigEndianUint(attrAt(msg, unix.NFTA_GEN_ID)), err
}

// liveElements returns those elements of the kernel's set whose links exist.
func (n *NS) liveElements() (found []guardElement, err error) {
	t := guardTables(nil)[0]
	if _, err := t.getTable(n); isNotExist(err) {
		return nil, nil
	}
	msgs, err := n.dumpObjects(unix.NFT_MSG_GETSETELEM, t.family(), t.guardSetAttrs()...)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	links, err := n.exactLinks()
	for _, m := range msgs {
		for _, value := range attrsOf(attrAt(m[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			var e guardElement
			key := attrAt(value, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
			if copy(e[:], key) == len(e) && slices.ContainsFunc(links,
				func(l Link) bool { return l.Index == e.index() }) {
				found = append(found, e)
			}
		}
	}
	return found, err
}

// guardSetAttrs returns the attributes that name the table and its set in a request about elements.
func (t Table) guardSetAttrs() []attribute {
	return []attribute{attrString(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, GuardSet)}
}

// checkElement returns fs.ErrNotExist if the kernel's set does not have the element e.
func (t Table) checkElement(n *NS, e guardElement) error {
	key := nested(1, dataAttr(unix.NFTA_SET_ELEM_KEY, e[:]))
	msg, err := t.getObject(n, unix.NFT_MSG_GETSETELEM,
		append(t.guardSetAttrs(), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, key))...)
	if err == nil && !bytes.Contains(msg, e[:]) {
		err = fs.ErrNotExist
	}
	return err
}

// addReplacement adds requests to x. They replace the kernel's table by t, or add t if the kernel has no such table.
func (t Table) addReplacement(x *transaction) error {
	own, err := t.newTransaction()
	if err != nil {
		return err
	}
	x.family, x.table = own.family, own.table
	x.replaceTable()
	return t.addContent(x)
}

// arrivedFromItself matches frames whose source is the MAC address of the incoming link, if this link is in the set.
func arrivedFromItself(elements []guardElement) Term {
	return Term{"iif . ether saddr @" + GuardSet, func(x *transaction) ([]attribute, error) {
		const first, second = unix.NFT_REG32_00, unix.NFT_REG32_01
		x.addGuardSet(elements)
		return exprs(
			expression("meta", attrBigEndian(unix.NFTA_META_KEY, unix.NFT_META_IIF),
				attrBigEndian(unix.NFTA_META_DREG, first)),
			expression("payload", attrBigEndian(unix.NFTA_PAYLOAD_DREG, second),
				attrBigEndian(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_LL_HEADER),
				attrBigEndian(unix.NFTA_PAYLOAD_OFFSET, 6), attrBigEndian(unix.NFTA_PAYLOAD_LEN, 6)),
			expression("lookup", attrBigEndian(unix.NFTA_LOOKUP_SREG, first),
				attrString(unix.NFTA_LOOKUP_SET, GuardSet),
				attrBigEndian(unix.NFTA_LOOKUP_SET_ID, x.sets))), nil
	}}
}

// fromGroupMAC matches Ethernet frames whose source is a multicast MAC address.
func fromGroupMAC() Term {
	return term("meta iiftype ether ether saddr & 01:00:00:00:00:00 == 01:00:00:00:00:00", func() []attribute {
		return exprs(meta(unix.NFT_META_IIFTYPE), equal(binary.NativeEndian.AppendUint16(nil, unix.ARPHRD_ETHER)),
			payload(unix.NFT_PAYLOAD_LL_HEADER, 6, 1), bitwise([]byte{1}, []byte{0}), equal([]byte{1}))
	})
}

// addGuardSet adds the set GuardSet with its elements. The set has nft(8)'s type "ifindex . ether_addr", so that nft(8)
// can print the elements.
func (x *transaction) addGuardSet(elements []guardElement) {
	const typ, size = 20<<6 | 9, 12
	x.sets++
	x.add(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_TABLE, x.table),
		attrString(unix.NFTA_SET_NAME, GuardSet),
		attrBigEndian(unix.NFTA_SET_KEY_TYPE, typ), attrBigEndian(unix.NFTA_SET_KEY_LEN, size),
		attrBigEndian(unix.NFTA_SET_ID, x.sets))
	var list []attribute
	for i, e := range elements {
		list = append(list, nested(i+1, dataAttr(unix.NFTA_SET_ELEM_KEY, e[:])))
	}
	x.add(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, attrString(unix.NFTA_SET_ELEM_LIST_TABLE, x.table),
		attrString(unix.NFTA_SET_ELEM_LIST_SET, GuardSet),
		attrBigEndian(unix.NFTA_SET_ELEM_LIST_SET_ID, x.sets), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list...))
}
