// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A Carrier is a link that can carry the addresses of a network card, and the addresses that the link has.
type Carrier struct {
	Link
	Addrs []netip.Addr
}

// Slaves lists the links of n that were made on a link of another namespace, home: ipvlan, macvlan and VLANs. The field
// Peer of a slave is the index of that link in home.
//
// The owner of a namespace chooses the names, indices, groups and MAC addresses of its links, and can make links of all
// kinds. The owner cannot choose the namespace of the link below. Only a process with the privileges of home can make a
// link on a link of home. So Slaves relies only on the namespace of the link below, which the kernel reports.
//
// When the kernel describes a link of n that was made on a link of home, it gives n a number for home. n keeps this
// number (peernet2id_alloc). So a namespace without a number for home has no such link, and Slaves does not ask for its
// links.
//
// If links change all the time, all lists of the kernel may be incomplete. Then Slaves returns all slaves that several
// lists have shown. By such changes, a namespace can hide only its own slaves. No other slave can have the addresses of
// hidden slaves meanwhile.
func (n *NS) Slaves(home *NS) ([]Carrier, error) {
	number, err := n.numberOf(home)
	if err != nil {
		return nil, fmt.Errorf("%s: ask for the number by which this namespace knows %s: %w", n.Name, home.Name, err)
	}
	if number == 0 {
		return nil, nil
	}
	return n.carriers(func(l Link) bool { return l.peerNS == number && borrows(l) })
}

// HasOn reports whether the namespace has a link that was made on l, a link of home. HasOn is also right if l came to
// home after that link was made. Only a card that a pod has had comes to home so late. In this case, n has no number
// for home before the kernel lists the links of n. So HasOn first lists the links of n.
func (n *NS) HasOn(home *NS, l Link) (bool, error) {
	if _, err := n.Links(); err != nil {
		return false, err
	}
	slaves, err := n.Slaves(home)
	return slices.ContainsFunc(slaves, func(c Carrier) bool { return c.Peer == l.Index }), err
}

// CardsOf lists the links of the namespace that are network cards, by their kinds (see [Link]). Like Slaves, it returns
// all cards that several lists have shown.
func (n *NS) CardsOf(kinds ...string) ([]Carrier, error) {
	return n.carriers(func(l Link) bool { return l.Index != loopback && slices.Contains(kinds, l.Kind) })
}

// carriers lists the links for which the function wanted returns true, with their addresses.
func (n *NS) carriers(wanted func(Link) bool) ([]Carrier, error) {
	links := map[int]Link{}
	err := n.several(unix.RTM_GETLINK, unix.RTM_NEWLINK, func(m []byte) {
		if l := parseLink(m); wanted(l) {
			links[l.Index] = l
		}
	}, linkMessage(), skipStats())
	if err != nil {
		return nil, fmt.Errorf("%s: list links: %w", n.Name, err)
	}
	var all []Carrier
	for _, index := range slices.Sorted(maps.Keys(links)) {
		addrs, err := n.addrsOf(index)
		if err != nil {
			return nil, fmt.Errorf("%s: list addresses of %s: %w", n.Name, links[index].Name, err)
		}
		all = append(all, Carrier{links[index], addrs})
	}
	return all, nil
}

// addrsOf lists the addresses of a link. Since Linux 4.20, the kernel lists the addresses of only this link
// (inet_dump_ifaddr, inet6_dump_addr).
func (n *NS) addrsOf(index int) ([]netip.Addr, error) {
	addrs := map[netip.Addr]bool{}
	msg := nl.NewIfAddrmsg(int(bothFamilies))
	msg.Index = uint32(index)
	err := n.several(unix.RTM_GETADDR, unix.RTM_NEWADDR, func(m []byte) {
		if !slices.Contains(Families, Family(m[0])) {
			return
		}
		if a := parseAddr(m); a.index == index {
			addrs[a.Prefix.Addr()] = true
		}
	}, msg)
	if absent(err) { // the link has gone
		err = nil
	}
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare), err
}

// several asks the kernel for a list, and passes every message to the function each. If a change interrupts the list,
// several asks again, a few times.
func (n *NS) several(typ int, answer uint16, each func([]byte), head nl.NetlinkRequestData, attrs ...attribute) error {
	err := retry(func() error {
		msgs, err := n.once(unix.NETLINK_ROUTE, typ, unix.NLM_F_DUMP, answer, head, attrs...)
		for _, m := range msgs {
			each(m)
		}
		return err
	})
	if err == nl.ErrDumpInterrupted {
		return nil
	}
	return kernel(err)
}
