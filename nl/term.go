// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Term is one part of a rule of netfilter: the text of nft(8), and the code of the kernel,
// which loads a register and compares it.
type Term struct {
	text string
	code func(*nftables.Conn, *nftables.Table) ([]expr.Any, error)
}

// term is a Term whose code needs no set. A check compares texts, and makes no code.
func term(text string, code func() []expr.Any) Term {
	return Term{text, func(*nftables.Conn, *nftables.Table) ([]expr.Any, error) { return code(), nil }}
}

// exprs are the code of a Term.
func exprs(code ...expr.Any) []expr.Any { return code }

// IIFName matches packets that have arrived by a link. A name that ends in an asterisk stands
// for all links whose names begin with the part before it.
func IIFName(name string) Term { return linkName("iifname", expr.MetaKeyIIFNAME, name) }

// OIFName matches packets that leave by a link; see IIFName.
func OIFName(name string) Term { return linkName("oifname", expr.MetaKeyOIFNAME, name) }

func linkName(word string, key expr.MetaKey, name string) Term {
	return term(word+" "+strconv.Quote(name), func() []expr.Any {
		data := make([]byte, unix.IFNAMSIZ)
		copy(data, name)
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			data = []byte(prefix)
		}
		return exprs(&expr.Meta{Key: key, Register: 1}, equal(data))
	})
}

// IIFGroup matches packets that have arrived by a link of the group.
func IIFGroup(group uint32) Term { return ifgroup("iifgroup", expr.MetaKeyIIFGROUP, group) }

// OIFGroup matches packets that leave by a link of the group.
func OIFGroup(group uint32) Term { return ifgroup("oifgroup", expr.MetaKeyOIFGROUP, group) }

func ifgroup(word string, key expr.MetaKey, group uint32) Term {
	return term(word+" "+decimal(group), func() []expr.Any {
		return exprs(&expr.Meta{Key: key, Register: 1}, equal(binaryutil.NativeEndian.PutUint32(group)))
	})
}

// SAddr matches packets from one of the prefixes, which must have one family.
func SAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", false, p) }

// DAddr matches packets to one of the prefixes.
func DAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", false, p) }

// NotSAddr matches packets of the prefixes' family whose source is in none of them.
func NotSAddr(p ...netip.Prefix) Term { return inPrefixes("saddr", true, p) }

// NotDAddr matches packets of the prefixes' family whose destination is in none of them.
func NotDAddr(p ...netip.Prefix) Term { return inPrefixes("daddr", true, p) }

// NextHop matches packets whose route has the next hop a.
func NextHop(a netip.Addr) Term {
	f, _ := nfFamily(a)
	key := expr.RtNexthop4 // it matches only packets of its family
	if a.Is6() {
		key = expr.RtNexthop6
	}
	return term("rt "+f+" nexthop "+a.String(), func() []expr.Any { return exprs(&expr.Rt{Register: 1, Key: key}, equal(a.AsSlice())) })
}

// L4Proto matches a protocol over IP: tcp, udp, icmp, icmpv6, sctp, 4 (IPv4) or 41 (IPv6).
func L4Proto(name string) Term {
	return term("meta l4proto "+name, func() []expr.Any { return l4proto(name) })
}

func l4proto(name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{protocols[name]})}
}

var protocols = map[string]byte{
	"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "4": unix.IPPROTO_IPIP, "41": unix.IPPROTO_IPV6, "sctp": unix.IPPROTO_SCTP, "icmp": unix.IPPROTO_ICMP, "icmpv6": unix.IPPROTO_ICMPV6,
}

// DPort matches packets of a protocol to the ports from first to last.
func DPort(proto string, first, last uint16) Term {
	text := proto + " dport " + decimal(first)
	if first != last {
		text += "-" + decimal(last)
	}
	return term(text, func() []expr.Any {
		port := &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
		if first == last {
			return append(l4proto(proto), port, equal(binaryutil.BigEndian.PutUint16(first)))
		}
		return append(l4proto(proto), port, &expr.Range{Op: expr.CmpOpEq, Register: 1,
			FromData: binaryutil.BigEndian.PutUint16(first), ToData: binaryutil.BigEndian.PutUint16(last)})
	})
}

// NoRouteBack matches packets from an address to which no route leads by the link by which they
// have arrived.
func NoRouteBack() Term {
	return term("fib saddr . iif oif missing", func() []expr.Any {
		return exprs(&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true}, equal(make([]byte, 4)))
	})
}

// ToLocal matches packets to an address of the namespace itself.
func ToLocal() Term {
	return term("fib daddr type local", func() []expr.Any {
		return exprs(&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)))
	})
}

// CTState matches packets whose connection is in one of the states: new,
// established, related, invalid or untracked.
func CTState(states ...string) Term {
	return term("ct state "+strings.Join(states, ","), func() []expr.Any {
		var bits uint32
		for _, s := range states {
			bits |= ctStates[s]
		}
		return exprs(&expr.Ct{Key: expr.CtKeySTATE, Register: 1}, masked(bits), notZero())
	})
}

var ctStates = map[string]uint32{
	"invalid": expr.CtStateBitINVALID, "established": expr.CtStateBitESTABLISHED, "related": expr.CtStateBitRELATED,
	"new": expr.CtStateBitNEW, "untracked": expr.CtStateBitUNTRACKED,
}

// CTReply matches packets that answer the packets that began their connection.
func CTReply() Term {
	const reply = 1 // IP_CT_DIR_REPLY
	return term("ct direction reply", func() []expr.Any { return exprs(&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equal([]byte{reply})) })
}

// statusDNAT is IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h.
const statusDNAT = 1 << 5

// CTStatusDNAT matches packets of a connection whose destination was translated.
func CTStatusDNAT() Term {
	return term("ct status dnat", func() []expr.Any {
		return exprs(&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, masked(statusDNAT), notZero())
	})
}

// CTMark matches packets of a connection that has all bits of the mark.
func CTMark(mark uint32) Term {
	return term("ct mark & "+hexadecimal(mark)+" == "+hexadecimal(mark), func() []expr.Any {
		return exprs(&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, masked(mark), equal(binaryutil.NativeEndian.PutUint32(mark)))
	})
}

// SetCTMark sets the bits of the mark on the connection and leaves the others.
func SetCTMark(mark uint32) Term {
	return term("ct mark set ct mark | "+hexadecimal(mark), func() []expr.Any {
		return exprs(&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, or(mark), &expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true})
	})
}

// SetMark sets the bits of the mark on the packet and leaves the others.
func SetMark(mark uint32) Term {
	return term("meta mark set meta mark | "+hexadecimal(mark), func() []expr.Any {
		return exprs(&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, or(mark), &expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true})
	})
}

// Count counts packets and bytes.
func Count() Term { return term("counter", func() []expr.Any { return exprs(&expr.Counter{}) }) }

// Drop ends a rule.
func Drop() Term { return verdict("drop", expr.VerdictDrop) }

// Accept ends a rule.
func Accept() Term { return verdict("accept", expr.VerdictAccept) }

func verdict(text string, kind expr.VerdictKind) Term {
	return term(text, func() []expr.Any { return exprs(&expr.Verdict{Kind: kind}) })
}

// Masquerade ends a rule: the source becomes an address of the link by which the packet leaves,
// and any free port. Ports chosen in order collide when two CPUs choose at once, and the later
// packet is lost. So the choice is fully-random.
func Masquerade() Term {
	return term("masquerade fully-random", func() []expr.Any { return exprs(&expr.Masq{FullyRandom: true}) })
}

// SNAT ends a rule: the source becomes a, with any free port.
func SNAT(a netip.Addr) Term {
	f, family := nfFamily(a)
	return term("snat "+f+" to "+a.String()+" fully-random", func() []expr.Any {
		return exprs(&expr.Immediate{Register: 1, Data: a.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1, FullyRandom: true})
	})
}

// SNATWithin ends a rule: the source becomes a, with a free port from first to last. For ICMP,
// the number is the identifier of an echo.
func SNATWithin(a netip.Addr, first, last uint16) Term {
	f, family := nfFamily(a)
	return term("snat "+f+" to "+portRange(a, first, last)+" fully-random", func() []expr.Any {
		return exprs(&expr.Immediate{Register: 1, Data: a.AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(first)},
			&expr.Immediate{Register: 3, Data: binaryutil.BigEndian.PutUint16(last)},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2, RegProtoMax: 3, Specified: true, FullyRandom: true})
	})
}

// portRange is an address with ports, as nft(8) writes it.
func portRange(a netip.Addr, first, last uint16) string {
	return netip.AddrPortFrom(a, first).String() + "-" + decimal(last)
}

// ClampMSS lowers the segment size that the beginning of a TCP connection announces to what fits
// into the route. It helps where ICMP errors about the MTU of a path get lost.
func ClampMSS() Term {
	const syn, maxseg = 0x02, 2 // RFC 9293, sections 3.1 and 3.2
	return term("tcp flags syn tcp option maxseg size set rt mtu", func() []expr.Any {
		return append(l4proto("tcp"),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 1, Mask: []byte{syn}, Xor: []byte{0}}, notEqual([]byte{0}),
			&expr.Rt{Register: 1, Key: expr.RtTCPMSS},
			&expr.Byteorder{Op: expr.ByteorderHton, SourceRegister: 1, DestRegister: 1, Len: 2, Size: 2},
			&expr.Exthdr{SourceRegister: 1, Type: maxseg, Offset: 2, Len: 2, Op: expr.ExthdrOpTcpopt})
	})
}

// SNATPorts ends a rule: the source keeps its address. It keeps its port, too, if that is free
// and from first to last. Otherwise it gets such a port.
func SNATPorts(first, last uint16) Term {
	return term("snat to :"+decimal(first)+"-"+decimal(last), func() []expr.Any {
		return exprs(&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(first)},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(last)},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_INET, RegProtoMin: 1, RegProtoMax: 2, Specified: true})
	})
}

// DNAT ends a rule: the destination becomes to.
func DNAT(to netip.AddrPort) Term {
	f, family := nfFamily(to.Addr())
	return term("dnat "+f+" to "+to.String(), func() []expr.Any {
		return exprs(&expr.Immediate{Register: 1, Data: to.Addr().AsSlice()},
			&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(to.Port())},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2})
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

func equal(data []byte) expr.Any    { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
func notEqual(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data} }
func notZero() expr.Any             { return notEqual(make([]byte, 4)) }

// masked keeps only some bits of the register; or sets some of them.
func masked(bits uint32) expr.Any { return bitwise(bits, 0) }
func or(bits uint32) expr.Any     { return bitwise(^bits, bits) }

func bitwise(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4,
		Mask: binary.NativeEndian.AppendUint32(nil, mask), Xor: binary.NativeEndian.AppendUint32(nil, xor)}
}
