// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// The node's end of a routed pod's pair is in a group that names the pod's ENI. The group's first byte is routedGroups,
// and the rest is the index of the ENI's link. So the node finds the ENI of a pod's packet by one rule for each ENI,
// and not by one rule for each pod.

// routedGroups is the first byte of the groups of the node's ends of routed pairs. The bytes 72 to 75 are the first
// bytes of groups in pods.
const routedGroups = OwnGroup + 4

// RoutedGroup returns the group of the node's ends of routed pairs. eni is the index of the link of their ENI.
func RoutedGroup(eni int) uint32 { return routedGroups<<24 | uint32(eni)&sameAttachment }

// IsRouted reports whether a group is one that RoutedGroup returns.
func IsRouted(group uint32) bool { return group>>24 == routedGroups }

// OfRoutedGroup returns the index of the ENI's link for which RoutedGroup returns this group. The second result reports
// whether there is such an index.
func OfRoutedGroup(group uint32) (eni int, is bool) {
	return int(group & sameAttachment), IsRouted(group)
}

// IsPair reports whether a group is the group of the node's ends of pairs, routed or not.
func IsPair(group uint32) bool { return group == OwnGroup || IsRouted(group) }

// routedTables are the first two bits of the numbers of ENIs' routing tables. The routing table of a single pod has
// other first bits.
const routedTables = 3 << 30

// RoutedTable returns the number of the routing table for packets that routed pods send by their ENI. eni is the index
// of the ENI's link.
func RoutedTable(eni int) uint32 { return routedTables | uint32(eni)&sameAttachment }

// OfRoutedTable returns the index of the ENI's link for which RoutedTable returns this number. The second result
// reports whether there is such an index.
func OfRoutedTable(table uint32) (eni int, is bool) {
	return int(table & sameAttachment), table&^uint32(sameAttachment) == routedTables
}

// routedAddr is the address of the links of ENIs that have routed pods.
func routedAddr() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 72, 2}), 32)
}

// RoutedAddr is an address for the link of an ENI that has routed pods. The value of the address does not matter, but
// the link must have an address.
func RoutedAddr(eni string) Addr { return Addr{Prefix: routedAddr(), Dev: eni, Apart: true} }

// The names of the tables of nftables for routed pods. ENITable sets the marks of all ENIs. The name of the table for
// the ARP requests by one ENI begins with askTables. The name of the table for a network's routed pods begins with
// routedNames. StrayTable drops packets that arrive by the boot ENI for pods that have ended.
const (
	ENITable    = OwnTable + "._enis"
	StrayTable  = OwnTable + "._strays"
	askTables   = OwnTable + "._ask."
	routedNames = OwnTable + "._routed."
)

// AskTable is the name of the table for the node's ARP requests by one ENI. eni is the name of the ENI's link.
func AskTable(eni string) string { return askTables + eni }

// AskTables lists the names of the ENIs' links for which the namespace has an [AskTable].
func (n *NS) AskTables() (enis []string, err error) {
	tables, err := n.ownTables(func(name string) bool { return strings.HasPrefix(name, askTables) })
	for _, t := range tables {
		enis = append(enis, strings.TrimPrefix(t.Name, askTables))
	}
	return enis, err
}

// RoutedTableOf is the name of the table for the routed pods of a network.
func RoutedTableOf(network string) string { return routedNames + network }

// isRoutedTable reports whether a table of this name serves routed pods that run. [StrayTable] does not: that table is
// for pods that have ended, and stays.
func isRoutedTable(name string) bool {
	return name == ENITable || strings.HasPrefix(name, askTables) || strings.HasPrefix(name, routedNames)
}

// IIFRouted matches packets that have arrived by the pair of a routed pod.
func IIFRouted() Term { return ofRouted("iifgroup", unix.NFT_META_IIFGROUP) }

// OIFRouted matches packets that leave by the pair of a routed pod.
func OIFRouted() Term { return ofRouted("oifgroup", unix.NFT_META_OIFGROUP) }

func ofRouted(word string, key uint32) Term {
	const first = 0xff << 24
	return term(word+" & "+hexadecimal(first)+" == "+hexadecimal(routedGroups<<24), func() []attribute {
		return exprs(meta(key), masked(first), equal(native(routedGroups<<24)))
	})
}

// SetMarkBits replaces the bits that mask selects in the mark of a packet by the bits of mark. The other bits of the
// packet's mark stay.
func SetMarkBits(mark, mask uint32) Term {
	return term("meta mark set meta mark & "+hexadecimal(^mask)+" | "+hexadecimal(mark), func() []attribute {
		return exprs(meta(unix.NFT_META_MARK), bitwise(native(^mask), native(mark)), setMeta(unix.NFT_META_MARK))
	})
}

// SetARPSender replaces the sender's IPv4 address in a packet of ARP on Ethernet: the address of the host that asks or
// answers.
func SetARPSender(a netip.Addr) Term {
	const sender, size = 14, 4 // RFC 826: behind the types, the lengths, the operation and the MAC address
	return term("arp saddr ip set "+a.String(), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, a.AsSlice()),
			setPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, sender, size))
	})
}
