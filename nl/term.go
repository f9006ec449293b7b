// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Term is a part of a rule of nftables: a condition or an action. It has a text in the language of nft(8), and the
// kernel's expressions (see expression).
type Term struct {
	text string
	// code returns the expressions. If the expressions use a set, code also adds the requests for this set to the
	// transaction.
	code func(*transaction) ([]attribute, error)
}

// term returns a Term whose expressions use no set. The argument "code" is a function: Table.Check needs only the text
// of a Term, so it does not build the expressions.
func term(text string, code func() []attribute) Term {
	return Term{text, func(*transaction) ([]attribute, error) { return code(), nil }}
}

func exprs(code ...attribute) []attribute { return code }

// IIFName matches packets that have arrived through the link with the given name. A name with an asterisk at its end
// matches all links whose names begin with the part before the asterisk.
func IIFName(name string) Term { return linkName("iifname", unix.NFT_META_IIFNAME, name) }

// OIFName matches packets that leave through the link with the given name, which may end with an asterisk: see IIFName.
func OIFName(name string) Term { return linkName("oifname", unix.NFT_META_OIFNAME, name) }

func linkName(word string, key uint32, name string) Term {
	return term(word+" "+strconv.Quote(name), func() []attribute { return exprs(meta(key), equal(nameBytes(name))) })
}

// NotOIFName matches packets that OIFName does not match.
func NotOIFName(name string) Term {
	return term("oifname != "+strconv.Quote(name), func() []attribute {
		return exprs(meta(unix.NFT_META_OIFNAME), notEqual(nameBytes(name)))
	})
}

// nameBytes returns the bytes with which the kernel must compare the name of a link: all 16 bytes, or the part before
// an asterisk.
func nameBytes(name string) []byte {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return []byte(prefix)
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// IIFGroup matches packets that have arrived through a link of the group.
func IIFGroup(group uint32) Term { return ifgroup("iifgroup", unix.NFT_META_IIFGROUP, group) }

// OIFGroup matches packets that leave through a link of the group.
func OIFGroup(group uint32) Term { return ifgroup("oifgroup", unix.NFT_META_OIFGROUP, group) }

func ifgroup(word string, key uint32, group uint32) Term {
	return term(word+" "+decimal(group), func() []attribute {
		return exprs(meta(key), equal(nativeBytes(group)))
	})
}

// SAddr matches packets whose source is in one of the prefixes, which must be of one family.
func SAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", false, p) }

// DAddr matches packets whose destination is in one of the prefixes, which must be of one family.
func DAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", false, p) }

// NotSAddr matches packets of the prefixes' family whose source is in none of the prefixes.
func NotSAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", true, p) }

// NotDAddr matches packets of the prefixes' family whose destination is in none of the prefixes.
func NotDAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", true, p) }

// NextHop matches packets whose route has the next hop addr.
func NextHop(addr netip.Addr) Term {
	f, _ := nfFamily(addr)
	key := uint32(unix.NFT_RT_NEXTHOP4) // matches only IPv4 packets
	if addr.Is6() {
		key = unix.NFT_RT_NEXTHOP6
	}
	return term("rt "+f+" nexthop "+addr.String(), func() []attribute { return exprs(rt(key), equal(addr.AsSlice())) })
}

// L4Proto matches packets of a protocol over IP: tcp, udp, icmp, icmpv6, sctp, 4 (IPv4) or 41 (IPv6).
func L4Proto(name string) Term {
	return term("meta l4proto "+name, func() []attribute { return l4proto(name) })
}

func l4proto(name string) []attribute {
	number, _ := protocols.numberOf(name)
	return exprs(meta(unix.NFT_META_L4PROTO), equal([]byte{byte(number)}))
}

var protocols = nameTable{
	{"tcp", unix.IPPROTO_TCP}, {"udp", unix.IPPROTO_UDP}, {"4", unix.IPPROTO_IPIP}, {"41", unix.IPPROTO_IPV6},
	{"sctp", unix.IPPROTO_SCTP}, {"icmp", unix.IPPROTO_ICMP}, {"icmpv6", unix.IPPROTO_ICMPV6},
}

// DPort matches packets of the protocol proto, if their destination port is in the range from first to last.
func DPort(proto string, first, last uint16) Term {
	text := proto + " dport " + decimal(first)
	if first != last {
		text += "-" + decimal(last)
	}
	return term(text, func() []attribute {
		code := append(l4proto(proto), payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2))
		if first == last {
			return append(code, equal(portBytes(first)))
		}
		return append(code, inRange(portBytes(first), portBytes(last)))
	})
}

// NoRouteBack matches a packet if the route to its source does not use the incoming link, or if there is no route.
// The kernel looks for the route of an answer, whose source is the packet's present destination.
func NoRouteBack() Term { return routeBack("fib saddr . iif oif missing", 0, 0) }

// NoRouteBackByMark is like NoRouteBack, but the kernel looks for the route of an answer with the packet's mark.
func NoRouteBackByMark() Term {
	return routeBack("fib saddr . mark . iif oif missing", unix.NFTA_FIB_F_MARK, 0)
}

// RouteBackByMark matches packets that NoRouteBackByMark does not match.
func RouteBackByMark() Term {
	return routeBack("fib saddr . mark . iif oif exists", unix.NFTA_FIB_F_MARK, 1)
}

func routeBack(text string, flag uint32, exists byte) Term {
	return term(text, func() []attribute {
		return exprs(fib(flag|unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_PRESENT,
			unix.NFT_FIB_RESULT_OIF), equal([]byte{exists, 3: 0}))
	})
}

// ToLocal matches packets to an address of the namespace itself.
func ToLocal() Term {
	return term("fib daddr type local", func() []attribute {
		return exprs(fib(unix.NFTA_FIB_F_DADDR, unix.NFT_FIB_RESULT_ADDRTYPE), equal(nativeBytes(unix.RTN_LOCAL)))
	})
}

// NotToLocal matches packets that ToLocal does not match.
func NotToLocal() Term {
	return term("fib daddr type != local", func() []attribute {
		return exprs(fib(unix.NFTA_FIB_F_DADDR, unix.NFT_FIB_RESULT_ADDRTYPE), notEqual(nativeBytes(unix.RTN_LOCAL)))
	})
}

// CTState matches packets whose connection is in one of the states: new,
// established, related, invalid or untracked.
func CTState(states ...string) Term {
	return term("ct state "+strings.Join(states, ","), func() []attribute {
		var bits uint32
		for _, s := range states {
			bit, _ := ctStates.numberOf(s)
			bits |= bit
		}
		return exprs(ct(unix.NFT_CT_STATE), keepBits(bits), notZero())
	})
}

// ctStates has the bits for states in linux/netfilter/nf_conntrack_common.h.
var ctStates = nameTable{{"invalid", 1}, {"established", 1 << 1}, {"related", 1 << 2}, {"new", 1 << 3},
	{"untracked", 1 << 6}}

// CTReply matches packets from the side that did not begin their connection.
func CTReply() Term { return ctDirection("reply", 1) } // IP_CT_DIR_REPLY

// CTOriginal matches packets from the side that began their connection.
func CTOriginal() Term { return ctDirection("original", 0) } // IP_CT_DIR_ORIGINAL

func ctDirection(name string, number byte) Term {
	return term("ct direction "+name, func() []attribute {
		return exprs(ct(unix.NFT_CT_DIRECTION), equal([]byte{number}))
	})
}

// CTStatusDNAT matches packets of a connection whose destination was translated.
func CTStatusDNAT() Term { return ctStatus("dnat", 1<<5) } // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h

// CTStatusSNAT matches packets of a connection whose source was translated.
func CTStatusSNAT() Term { return ctStatus("snat", 1<<4) } // IPS_SRC_NAT

func ctStatus(name string, bit uint32) Term {
	return term("ct status "+name, func() []attribute {
		return exprs(ct(unix.NFT_CT_STATUS), keepBits(bit), notZero())
	})
}

// CTMark matches packets whose connection's mark has all bits of the argument.
func CTMark(mark uint32) Term {
	return term("ct mark & "+hexadecimal(mark)+" == "+hexadecimal(mark), func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), keepBits(mark), equal(nativeBytes(mark)))
	})
}

// CTUnmarked matches packets whose connection's mark has no bit of the argument.
func CTUnmarked(mark uint32) Term {
	return term("ct mark & "+hexadecimal(mark)+" == 0x0", func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), keepBits(mark), equal(nativeBytes(0)))
	})
}

// SetCTMark sets the bits of the argument in the mark of the packet's connection.
func SetCTMark(mark uint32) Term {
	return term("ct mark set ct mark | "+hexadecimal(mark), func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), setBits(mark), setCT(unix.NFT_CT_MARK))
	})
}

// SetMark sets the bits of the argument in the packet's mark.
func SetMark(mark uint32) Term {
	return term("meta mark set meta mark | "+hexadecimal(mark), func() []attribute {
		return exprs(meta(unix.NFT_META_MARK), setBits(mark), setMeta(unix.NFT_META_MARK))
	})
}

// Marked matches packets whose mark has all bits of the argument.
func Marked(mark uint32) Term {
	return term("meta mark & "+hexadecimal(mark)+" == "+hexadecimal(mark), func() []attribute {
		return exprs(meta(unix.NFT_META_MARK), keepBits(mark), equal(nativeBytes(mark)))
	})
}

// Count counts the packets that match the Terms before it, and their bytes.
func Count() Term { return term("counter", func() []attribute { return exprs(counter()) }) }

// Drop ends a rule: the kernel drops the packet.
func Drop() Term { return term("drop", func() []attribute { return exprs(verdict(verdictDrop)) }) }

// Accept ends a rule: the packet passes the chain, and the kernel ignores the chain's next rules.
func Accept() Term {
	return term("accept", func() []attribute { return exprs(verdict(verdictAccept)) })
}

// Reset ends a rule about TCP: the kernel drops the packet, and sends a TCP reset to the packet's source.
func Reset() Term { return term("reject with tcp reset", func() []attribute { return exprs(reset()) }) }

// Masquerade ends a rule: the packet's source becomes an address of the link through which the packet leaves, with any
// free port. The kernel chooses the port at random ("fully-random"). With a port that is not random, two CPUs could
// choose the same port at the same time, and one packet would be lost.
func Masquerade() Term {
	return term("masquerade fully-random", func() []attribute {
		return exprs(masq(unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY))
	})
}

// SNAT ends a rule: the packet's source becomes addr, with any free port.
func SNAT(addr netip.Addr) Term {
	f, family := nfFamily(addr)
	return term("snat "+f+" to "+addr.String()+" fully-random", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, addr.AsSlice()),
			nat(unix.NFT_NAT_SNAT, family, attrBigEndian(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrBigEndian(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)))
	})
}

// SNATWithin ends a rule: the packet's source becomes addr, with a free port from first to last. In ICMP, the
// identifier of an echo request stands for the port.
func SNATWithin(addr netip.Addr, first, last uint16) Term {
	f, family := nfFamily(addr)
	return term("snat "+f+" to "+portRange(addr, first, last)+" fully-random", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, addr.AsSlice()),
			immediate(unix.NFT_REG_2, portBytes(first)),
			immediate(unix.NFT_REG_3, portBytes(last)),
			nat(unix.NFT_NAT_SNAT, family, attrBigEndian(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrBigEndian(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2),
				attrBigEndian(unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_3),
				attrBigEndian(unix.NFTA_NAT_FLAGS,
					unix.NF_NAT_RANGE_PROTO_SPECIFIED|unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)))
	})
}

// portRange returns an address with a range of ports, in the form of nft(8).
func portRange(a netip.Addr, first, last uint16) string {
	return netip.AddrPortFrom(a, first).String() + "-" + decimal(last)
}

// Notrack makes the connection tracker ignore a packet. The priority of the chain must be lower than -200, which is the
// priority of the connection tracker.
func Notrack() Term {
	return term("notrack", func() []attribute {
		return exprs(nested(unix.NFTA_LIST_ELEM, attrString(unix.NFTA_EXPR_NAME, "notrack")))
	})
}

// ClampMSS lowers the maximum segment size in a TCP SYN, so that segments fit the MTU of the packet's route. This helps
// if ICMP errors about the path's MTU get lost.
func ClampMSS() Term {
	const syn, maxseg = 0x02, 2 // RFC 9293, sections 3.1 and 3.2
	return term("tcp flags syn tcp option maxseg size set rt mtu", func() []attribute {
		return append(l4proto("tcp"),
			payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), bitwise([]byte{syn}, []byte{0}), notEqual([]byte{0}),
			rt(unix.NFT_RT_TCPMSS), hton(), setTCPOption(maxseg, 2, 2))
	})
}

// SNATPorts ends a rule: the packet's source gets a free port from first to last, and keeps its address. If the present
// port is free and in this range, the packet keeps the port.
func SNATPorts(first, last uint16) Term {
	return term("snat to :"+decimal(first)+"-"+decimal(last), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, portBytes(first)),
			immediate(unix.NFT_REG_2, portBytes(last)),
			nat(unix.NFT_NAT_SNAT, unix.NFPROTO_INET, attrBigEndian(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_1),
				attrBigEndian(unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_2),
				attrBigEndian(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_PROTO_SPECIFIED)))
	})
}

// DNAT ends a rule: the packet's destination becomes target.
func DNAT(target netip.AddrPort) Term {
	f, family := nfFamily(target.Addr())
	return term("dnat "+f+" to "+target.String(), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, target.Addr().AsSlice()),
			immediate(unix.NFT_REG_2, portBytes(target.Port())),
			nat(unix.NFT_NAT_DNAT, family, attrBigEndian(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrBigEndian(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2)))
	})
}

func decimal[T int | uint16 | uint32](n T) string { return strconv.FormatInt(int64(n), 10) }

func hexadecimal(n uint32) string { return "0x" + strconv.FormatUint(uint64(n), 16) }

func nfFamily(a netip.Addr) (string, byte) {
	if a.Is4() {
		return "ip", unix.NFPROTO_IPV4
	}
	return "ip6", unix.NFPROTO_IPV6
}
