// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Term is one part of a rule of netfilter. A Term has the text of nft(8), and the code for the kernel: expressions,
// see expression.
type Term struct {
	text string
	code func(*transaction) ([]attribute, error) // returns the expressions, and adds their set to the transaction
}

// term returns a Term whose code needs no set. code is a function, because a check compares only texts and needs no
// code.
func term(text string, code func() []attribute) Term {
	return Term{text, func(*transaction) ([]attribute, error) { return code(), nil }}
}

// exprs returns its arguments, which are the code of a Term.
func exprs(code ...attribute) []attribute { return code }

// IIFName matches packets that have arrived by a link. A name that ends in an asterisk stands
// for all links whose names begin with the part before it.
func IIFName(name string) Term { return linkName("iifname", unix.NFT_META_IIFNAME, name) }

// OIFName matches packets that leave by a link; see IIFName.
func OIFName(name string) Term { return linkName("oifname", unix.NFT_META_OIFNAME, name) }

func linkName(word string, key uint32, name string) Term {
	return term(word+" "+strconv.Quote(name), func() []attribute { return exprs(meta(key), equal(nameBytes(name))) })
}

// NotOIFName matches packets that do not leave by the link; see IIFName.
func NotOIFName(name string) Term {
	return term("oifname != "+strconv.Quote(name), func() []attribute {
		return exprs(meta(unix.NFT_META_OIFNAME), notEqual(nameBytes(name)))
	})
}

// nameBytes returns the bytes with which the kernel compares the name of a link.
func nameBytes(name string) []byte {
	if prefix, ok := strings.CutSuffix(name, "*"); ok {
		return []byte(prefix)
	}
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// IIFGroup matches packets that have arrived by a link of the group.
func IIFGroup(group uint32) Term { return ifgroup("iifgroup", unix.NFT_META_IIFGROUP, group) }

// OIFGroup matches packets that leave by a link of the group.
func OIFGroup(group uint32) Term { return ifgroup("oifgroup", unix.NFT_META_OIFGROUP, group) }

func ifgroup(word string, key uint32, group uint32) Term {
	return term(word+" "+decimal(group), func() []attribute {
		return exprs(meta(key), equal(native(group)))
	})
}

// SAddr matches packets whose source is in one of the prefixes. All prefixes must be of the same family.
func SAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", false, p) }

// DAddr matches packets whose destination is in one of the prefixes; see SAddr.
func DAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", false, p) }

// NotSAddr matches packets of the prefixes' family whose source is in none of the prefixes.
func NotSAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", true, p) }

// NotDAddr matches packets of the prefixes' family whose destination is in none of the prefixes.
func NotDAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", true, p) }

// NextHop matches packets whose route has the next hop a.
func NextHop(a netip.Addr) Term {
	f, _ := nfFamily(a)
	key := uint32(unix.NFT_RT_NEXTHOP4) // it matches only packets of its family
	if a.Is6() {
		key = unix.NFT_RT_NEXTHOP6
	}
	return term("rt "+f+" nexthop "+a.String(), func() []attribute { return exprs(rt(key), equal(a.AsSlice())) })
}

// L4Proto matches a protocol over IP: tcp, udp, icmp, icmpv6, sctp, 4 (IPv4) or 41 (IPv6).
func L4Proto(name string) Term {
	return term("meta l4proto "+name, func() []attribute { return l4proto(name) })
}

func l4proto(name string) []attribute {
	number, _ := protocols.number(name)
	return exprs(meta(unix.NFT_META_L4PROTO), equal([]byte{byte(number)}))
}

var protocols = names{
	{"tcp", unix.IPPROTO_TCP}, {"udp", unix.IPPROTO_UDP}, {"4", unix.IPPROTO_IPIP}, {"41", unix.IPPROTO_IPV6},
	{"sctp", unix.IPPROTO_SCTP}, {"icmp", unix.IPPROTO_ICMP}, {"icmpv6", unix.IPPROTO_ICMPV6},
}

// DPort matches packets of a protocol to the ports from first to last.
func DPort(proto string, first, last uint16) Term {
	text := proto + " dport " + decimal(first)
	if first != last {
		text += "-" + decimal(last)
	}
	return term(text, func() []attribute {
		code := append(l4proto(proto), payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2))
		if first == last {
			return append(code, equal(port(first)))
		}
		return append(code, within(port(first), port(last)))
	})
}

// NoRouteBack matches packets whose source has no route by the link by which the packets have arrived.
func NoRouteBack() Term {
	return term("fib saddr . iif oif missing", func() []attribute {
		return exprs(fib(unix.NFTA_FIB_F_SADDR|unix.NFTA_FIB_F_IIF|unix.NFTA_FIB_F_PRESENT, unix.NFT_FIB_RESULT_OIF),
			equal(make([]byte, 4)))
	})
}

// ToLocal matches packets to an address of the namespace itself.
func ToLocal() Term {
	return term("fib daddr type local", func() []attribute {
		return exprs(fib(unix.NFTA_FIB_F_DADDR, unix.NFT_FIB_RESULT_ADDRTYPE), equal(native(unix.RTN_LOCAL)))
	})
}

// CTState matches packets whose connection is in one of the states: new,
// established, related, invalid or untracked.
func CTState(states ...string) Term {
	return term("ct state "+strings.Join(states, ","), func() []attribute {
		var bits uint32
		for _, s := range states {
			bit, _ := ctStates.number(s)
			bits |= bit
		}
		return exprs(ct(unix.NFT_CT_STATE), masked(bits), notZero())
	})
}

// ctStates are the bits of linux/netfilter/nf_conntrack_common.h.
var ctStates = names{{"invalid", 1}, {"established", 1 << 1}, {"related", 1 << 2}, {"new", 1 << 3},
	{"untracked", 1 << 6}}

// CTReply matches packets in the opposite direction to the packets that began their connection.
func CTReply() Term { return direction("reply", 1) } // IP_CT_DIR_REPLY

// CTOriginal matches packets in the same direction as the packets that began their connection.
func CTOriginal() Term { return direction("original", 0) } // IP_CT_DIR_ORIGINAL

func direction(name string, number byte) Term {
	return term("ct direction "+name, func() []attribute {
		return exprs(ct(unix.NFT_CT_DIRECTION), equal([]byte{number}))
	})
}

// CTStatusDNAT matches packets of a connection whose destination was translated.
func CTStatusDNAT() Term { return status("dnat", 1<<5) } // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h

// CTStatusSNAT matches packets of a connection whose source was translated.
func CTStatusSNAT() Term { return status("snat", 1<<4) } // IPS_SRC_NAT

func status(name string, bit uint32) Term {
	return term("ct status "+name, func() []attribute {
		return exprs(ct(unix.NFT_CT_STATUS), masked(bit), notZero())
	})
}

// CTMark matches packets of a connection that has all bits of the mark.
func CTMark(mark uint32) Term {
	return term("ct mark & "+hexadecimal(mark)+" == "+hexadecimal(mark), func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), masked(mark), equal(native(mark)))
	})
}

// CTUnmarked matches packets of a connection that has no bit of the mark.
func CTUnmarked(mark uint32) Term {
	return term("ct mark & "+hexadecimal(mark)+" == 0x0", func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), masked(mark), equal(native(0)))
	})
}

// SetCTMark sets the bits of the mark on the connection. The other bits of the connection's mark stay.
func SetCTMark(mark uint32) Term {
	return term("ct mark set ct mark | "+hexadecimal(mark), func() []attribute {
		return exprs(ct(unix.NFT_CT_MARK), or(mark), setCT(unix.NFT_CT_MARK))
	})
}

// SetMark sets the bits of the mark on the packet. The other bits of the packet's mark stay.
func SetMark(mark uint32) Term {
	return term("meta mark set meta mark | "+hexadecimal(mark), func() []attribute {
		return exprs(meta(unix.NFT_META_MARK), or(mark), setMeta(unix.NFT_META_MARK))
	})
}

// Count counts packets and bytes.
func Count() Term { return term("counter", func() []attribute { return exprs(counter()) }) }

// Drop ends a rule: the kernel drops the packet.
func Drop() Term { return term("drop", func() []attribute { return exprs(verdict(verdictDrop)) }) }

// Accept ends a rule: the packet passes the chain.
func Accept() Term {
	return term("accept", func() []attribute { return exprs(verdict(verdictAccept)) })
}

// Reset ends a rule about TCP: the sender of the packet learns that its connection has ended. The packet goes no
// further.
func Reset() Term { return term("reject with tcp reset", func() []attribute { return exprs(reset()) }) }

// Masquerade ends a rule: the source becomes an address of the link by which the packet leaves,
// and any free port. Ports chosen in order collide when two CPUs choose at once, and the later
// packet is lost. So the choice is fully-random.
func Masquerade() Term {
	return term("masquerade fully-random", func() []attribute {
		return exprs(masq(unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY))
	})
}

// SNAT ends a rule: the source becomes a, with any free port.
func SNAT(a netip.Addr) Term {
	f, family := nfFamily(a)
	return term("snat "+f+" to "+a.String()+" fully-random", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, a.AsSlice()),
			nat(unix.NFT_NAT_SNAT, family, attrOrdered(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)))
	})
}

// SNATWithin ends a rule: the source becomes a, with a free port from first to last. For ICMP, the port is the
// identifier of an echo request.
func SNATWithin(a netip.Addr, first, last uint16) Term {
	f, family := nfFamily(a)
	return term("snat "+f+" to "+portRange(a, first, last)+" fully-random", func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, a.AsSlice()),
			immediate(unix.NFT_REG_2, port(first)),
			immediate(unix.NFT_REG_3, port(last)),
			nat(unix.NFT_NAT_SNAT, family, attrOrdered(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2),
				attrOrdered(unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_3),
				attrOrdered(unix.NFTA_NAT_FLAGS,
					unix.NF_NAT_RANGE_PROTO_SPECIFIED|unix.NF_NAT_RANGE_PROTO_RANDOM_FULLY)))
	})
}

// portRange returns an address with ports, as nft(8) writes them.
func portRange(a netip.Addr, first, last uint16) string {
	return netip.AddrPortFrom(a, first).String() + "-" + decimal(last)
}

// Notrack makes the connection tracker ignore a packet. The chain must have a priority below -200, the priority of the
// tracker.
func Notrack() Term {
	return term("notrack", func() []attribute {
		return exprs(nested(unix.NFTA_LIST_ELEM, attrString(unix.NFTA_EXPR_NAME, "notrack")))
	})
}

// ClampMSS lowers the segment size that a SYN of TCP announces to the size that fits the MTU of the route. ClampMSS
// helps where ICMP errors about the MTU of a path get lost.
func ClampMSS() Term {
	const syn, maxseg = 0x02, 2 // RFC 9293, sections 3.1 and 3.2
	return term("tcp flags syn tcp option maxseg size set rt mtu", func() []attribute {
		return append(l4proto("tcp"),
			payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1), bitwise([]byte{syn}, []byte{0}), notEqual([]byte{0}),
			rt(unix.NFT_RT_TCPMSS), hton(), setTCPOption(maxseg, 2, 2))
	})
}

// SNATPorts ends a rule: the source keeps its address. If the port is free and is from first to last, the source also
// keeps its port. Otherwise the source gets a free port from first to last.
func SNATPorts(first, last uint16) Term {
	return term("snat to :"+decimal(first)+"-"+decimal(last), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, port(first)),
			immediate(unix.NFT_REG_2, port(last)),
			nat(unix.NFT_NAT_SNAT, unix.NFPROTO_INET, attrOrdered(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_NAT_REG_PROTO_MAX, unix.NFT_REG_2),
				attrOrdered(unix.NFTA_NAT_FLAGS, unix.NF_NAT_RANGE_PROTO_SPECIFIED)))
	})
}

// DNAT ends a rule: the destination becomes to.
func DNAT(to netip.AddrPort) Term {
	f, family := nfFamily(to.Addr())
	return term("dnat "+f+" to "+to.String(), func() []attribute {
		return exprs(immediate(unix.NFT_REG_1, to.Addr().AsSlice()),
			immediate(unix.NFT_REG_2, port(to.Port())),
			nat(unix.NFT_NAT_DNAT, family, attrOrdered(unix.NFTA_NAT_REG_ADDR_MIN, unix.NFT_REG_1),
				attrOrdered(unix.NFTA_NAT_REG_PROTO_MIN, unix.NFT_REG_2)))
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
