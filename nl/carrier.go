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

// A Carrier is a link that can have addresses of an ENI.
type Carrier struct {
	Link
	Addrs []netip.Addr
}

// Slaves lists the ipvlan, macvlan and VLAN links of n whose master is in masterNS. The field Peer of each is the index
// of its master.
//
// The owner of a namespace, such as a pod, can make links there, and chooses their names, indices, groups and MAC
// addresses. But only a process with privileges in masterNS can make a link whose master is in masterNS. The kernel
// reports the namespace of a link's master, so Slaves selects links by this namespace.
//
// masterNS gets an ID in n (ip-netns(8)) when the kernel first sends a message about a link of n whose master is in
// masterNS. Usually, this happens when the link is made: for an exception, see HasOn. masterNS keeps its ID
// (peernet2id_alloc). So if masterNS has no ID in n, there are no slaves.
//
// If links change all the time, Slaves asks for several lists, and returns each slave that is in at least one of these
// lists. By such changes, the owner of a namespace can hide slaves in this namespace, but no slaves in other
// namespaces. An ipvlan slave cannot get an address of another slave of its master, so it cannot get an address of a
// hidden slave.
func (n *NS) Slaves(masterNS *NS) ([]Carrier, error) {
	number, err := n.nsNumber(masterNS)
	if err != nil {
		return nil, fmt.Errorf("%s: read the ID of the namespace %s: %w", n.Name, masterNS.Name, err)
	}
	if number == 0 {
		return nil, nil
	}
	return n.listCarriers(func(l Link) bool { return l.peerNS == number && borrowsMAC(l) })
}

// HasOn reports whether the namespace n has a link whose master is the link l of the namespace masterNS. The master may
// have moved to masterNS after the slave was made: for example, a card may have come back from a pod. Then masterNS may
// have no ID in n yet (see Slaves). The kernel gives masterNS an ID when it lists the links of n, so HasOn lists these
// links first.
func (n *NS) HasOn(masterNS *NS, l Link) (bool, error) {
	if _, err := n.Links(); err != nil {
		return false, err
	}
	slaves, err := n.Slaves(masterNS)
	return slices.ContainsFunc(slaves, func(c Carrier) bool { return c.Peer == l.Index }), err
}

// CardsOf lists the links whose Kind (see [Link]) is one of the given kinds, except lo. If links change all the time,
// CardsOf asks for several lists, as Slaves does.
func (n *NS) CardsOf(kinds ...string) ([]Carrier, error) {
	return n.listCarriers(func(l Link) bool { return l.Index != loopback && slices.Contains(kinds, l.Kind) })
}

func (n *NS) listCarriers(isWanted func(Link) bool) ([]Carrier, error) {
	links := map[int]Link{}
	err := n.requestSeveral(unix.RTM_GETLINK, unix.RTM_NEWLINK, func(m []byte) {
		if l := parseLink(m); isWanted(l) {
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

// addrsOf lists the addresses of a link. Linux before 4.20 answers with the addresses of all links (inet_dump_ifaddr,
// inet6_dump_addr), so addrsOf skips addresses of other links.
func (n *NS) addrsOf(index int) ([]netip.Addr, error) {
	addrs := map[netip.Addr]bool{}
	msg := nl.NewIfAddrmsg(int(bothFamilies))
	msg.Index = uint32(index)
	err := n.requestSeveral(unix.RTM_GETADDR, unix.RTM_NEWADDR, func(m []byte) {
		if !slices.Contains(Families, Family(m[0])) {
			return
		}
		if a := parseAddr(m); a.index == index {
			addrs[a.Prefix.Addr()] = true
		}
	}, msg)
	if isNotExist(err) { // the link is gone
		err = nil
	}
	return slices.SortedFunc(maps.Keys(addrs), netip.Addr.Compare), err
}

// requestSeveral asks the kernel for a dump, and calls the function visit with each message. If a change interrupts the
// dump, requestSeveral asks again, ten times at most. So visit may get the same message several times.
func (n *NS) requestSeveral(
	typ int, answerType uint16, visit func([]byte), head nl.NetlinkRequestData, attrs ...attribute,
) error {
	err := retryDump(func() error {
		msgs, err := n.sendOnce(unix.NETLINK_ROUTE, typ, unix.NLM_F_DUMP, answerType, head, attrs...)
		for _, m := range msgs {
			visit(m)
		}
		return err
	})
	if err == nl.ErrDumpInterrupted {
		return nil
	}
	return wrapNotExist(err)
}
