// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

// Each routed pod has a veth pair. The group of the pair's end on the node consists of routedGroupByte and the index of
// the ENI's link. So the node needs one rule for each ENI, and not one for each pod.

// routedGroupByte is the first byte of the groups that RoutedGroup returns. No group in a pod has this first byte: in
// pods, the first byte of our groups is 72, 73, 74 or 75.
const routedGroupByte = OwnGroup + 4

// RoutedGroup returns the group for the veth pairs of an ENI's routed pods: the node's ends are in this group. eni is
// the index of the ENI's link.
func RoutedGroup(eni int) uint32 { return routedGroupByte<<24 | uint32(eni)&attachmentMask }

// IsRouted reports whether RoutedGroup returns this group for an ENI.
func IsRouted(group uint32) bool { return group>>24 == routedGroupByte }

// OfRoutedGroup returns the index of the ENI's link for a group that RoutedGroup returns. ok is false for any other
// group.
func OfRoutedGroup(group uint32) (eni int, ok bool) {
	return int(group & attachmentMask), IsRouted(group)
}

// IsPair reports whether a link with this group is the node's end of a pod's veth pair. The pod may be routed or not.
func IsPair(group uint32) bool { return group == OwnGroup || IsRouted(group) }

// routedTableBits are the first bits of RoutedTable's numbers. FurtherTable's numbers may begin with the same bits, but
// are only in pods.
const routedTableBits = 3 << 30

// RoutedTable returns the number of the node's routing table for packets from the routed pods of an ENI. eni is the
// index of the ENI's link.
func RoutedTable(eni int) uint32 { return routedTableBits | uint32(eni)&attachmentMask }

// OfRoutedTable returns the index of the ENI's link for a number that RoutedTable returns. ok is false for any other
// number.
func OfRoutedTable(table uint32) (eni int, ok bool) {
	return int(table & attachmentMask), table&^uint32(attachmentMask) == routedTableBits
}

// routedPrefix returns the address that all links of ENIs with routed pods get: see RoutedAddr.
func routedPrefix() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{169, 254, 72, 2}), 32)
}

// RoutedAddr returns the address that we add to the link of an ENI with routed pods. The link needs an IPv4 address,
// but the value of this address does not matter. So all these links get the same address. eni is the name of the link.
func RoutedAddr(eni string) Addr { return Addr{Prefix: routedPrefix(), Dev: eni, Apart: true} }

// Names of the nftables tables for routed pods, and prefixes of such names. ENITable gives packets the mark of their
// ENI. StrayTable drops packets that arrive through the boot ENI for pods that have ended.
const (
	ENITable          = OwnTable + "._enis"
	StrayTable        = OwnTable + "._strays"
	askTablePrefix    = OwnTable + "._ask."
	routedTablePrefix = OwnTable + "._routed."
)

// AskTable returns the name of the table for the node's ARP requests through an ENI. eni is the name of the ENI's link.
func AskTable(eni string) string { return askTablePrefix + eni }

// AskTables returns the names of the links for which the namespace has an [AskTable].
func (n *NS) AskTables() (enis []string, err error) {
	tables, err := n.ownTables(func(name string) bool { return strings.HasPrefix(name, askTablePrefix) })
	for _, t := range tables {
		enis = append(enis, strings.TrimPrefix(t.Name, askTablePrefix))
	}
	return enis, err
}

// RoutedTableOf returns the name of a network's table of nftables for routed pods.
func RoutedTableOf(network string) string { return routedTablePrefix + network }

// isRoutedTable reports whether the table of nftables with this name serves only routed pods that run. It returns false
// for [StrayTable], which serves pods that have ended.
func isRoutedTable(name string) bool {
	return name == ENITable || strings.HasPrefix(name, askTablePrefix) || strings.HasPrefix(name, routedTablePrefix)
}

// IIFRouted matches packets that have arrived through the veth pair of a routed pod.
func IIFRouted() Term { return routedTerm("iifgroup", unix.NFT_META_IIFGROUP) }

// OIFRouted matches packets that leave through the veth pair of a routed pod.
func OIFRouted() Term { return routedTerm("oifgroup", unix.NFT_META_OIFGROUP) }

func routedTerm(word string, key uint32) Term {
	const first = 0xff << 24
	return term(word+" & "+hexadecimal(first)+" == "+hexadecimal(routedGroupByte<<24), func() []attribute {
		return exprs(meta(key), keepBits(first), equal(nativeBytes(routedGroupByte<<24)))
	})
}

// SetMarkBits changes bits of the packet's mark. Each bit that is 1 in the argument "mask" gets the value of this bit
// in the argument "mark".
func SetMarkBits(mark, mask uint32) Term {
	return term("meta mark set meta mark & "+hexadecimal(^mask)+" | "+hexadecimal(mark), func() []attribute {
		return exprs(meta(unix.NFT_META_MARK), bitwise(nativeBytes(^mask), nativeBytes(mark)),
			setMeta(unix.NFT_META_MARK))
	})
}

// SetARPSender replaces the sender's IPv4 address in an ARP packet on Ethernet.
func SetARPSender(a netip.Addr) Term {
	const sender, size = 14, 4 // RFC 826: after the types, the lengths, the operation and the sender's MAC address
	return term("arp saddr ip set "+a.String(), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, a.AsSlice()),
			setPayload(unix.NFT_PAYLOAD_NETWORK_HEADER, sender, size))
	})
}
