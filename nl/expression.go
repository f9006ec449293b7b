// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// expression returns one expression of a rule's code. An expression loads a register, compares a register, or acts on
// the packet. Only NAT expressions and the expressions of a Guard use registers other than register 1. The kernel wants
// the numbers in attributes in network byte order. A register has a value in the byte order that the value has in the
// packet, or in the kernel. See linux/netfilter/nf_tables.h.
func expression(name string, data ...attribute) attribute {
	return nested(unix.NFTA_LIST_ELEM, attrString(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

// nested is nest with the flag NLA_F_NESTED.
func nested(typ int, inside ...attribute) attribute { return nest(unix.NLA_F_NESTED|typ, inside...) }

// content returns a value for an expression. The expression compares a register with the value, or loads the value into
// a register.
func content(typ int, b []byte) attribute { return nested(typ, attr(unix.NFTA_DATA_VALUE, b)) }

// native returns a number in the CPU's byte order. The kernel's own numbers have this byte order in a register.
func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// port returns a port in the byte order of packets.
func port(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

func meta(key uint32) attribute {
	return expression("meta", attrOrdered(unix.NFTA_META_KEY, key), attrOrdered(unix.NFTA_META_DREG, unix.NFT_REG_1))
}

func setMeta(key uint32) attribute {
	return expression("meta", attrOrdered(unix.NFTA_META_KEY, key), attrOrdered(unix.NFTA_META_SREG, unix.NFT_REG_1))
}

func ct(key uint32) attribute {
	return expression("ct", attrOrdered(unix.NFTA_CT_KEY, key), attrOrdered(unix.NFTA_CT_DREG, unix.NFT_REG_1))
}

func setCT(key uint32) attribute {
	return expression("ct", attrOrdered(unix.NFTA_CT_KEY, key), attrOrdered(unix.NFTA_CT_SREG, unix.NFT_REG_1))
}

func rt(key uint32) attribute {
	return expression("rt", attrOrdered(unix.NFTA_RT_KEY, key), attrOrdered(unix.NFTA_RT_DREG, unix.NFT_REG_1))
}

func fib(flags, result uint32) attribute {
	return expression("fib", attrOrdered(unix.NFTA_FIB_DREG, unix.NFT_REG_1), attrOrdered(unix.NFTA_FIB_FLAGS, flags),
		attrOrdered(unix.NFTA_FIB_RESULT, result))
}

// payload loads size bytes of a header, from offset on, into the register.
func payload(header, offset, size uint32) attribute {
	return expression("payload", attrOrdered(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_PAYLOAD_BASE, header),
		attrOrdered(unix.NFTA_PAYLOAD_OFFSET, offset), attrOrdered(unix.NFTA_PAYLOAD_LEN, size))
}

// setPayload writes the register into a header of a protocol that has no checksum.
func setPayload(header, offset, size uint32) attribute {
	return expression("payload", attrOrdered(unix.NFTA_PAYLOAD_SREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_PAYLOAD_BASE, header),
		attrOrdered(unix.NFTA_PAYLOAD_OFFSET, offset), attrOrdered(unix.NFTA_PAYLOAD_LEN, size))
}

func equal(b []byte) attribute    { return compared(unix.NFT_CMP_EQ, b) }
func notEqual(b []byte) attribute { return compared(unix.NFT_CMP_NEQ, b) }
func notZero() attribute          { return notEqual(make([]byte, 4)) }

func compared(how uint32, b []byte) attribute {
	return expression("cmp", attrOrdered(unix.NFTA_CMP_SREG, unix.NFT_REG_1), attrOrdered(unix.NFTA_CMP_OP, how),
		content(unix.NFTA_CMP_DATA, b))
}

func within(first, last []byte) attribute {
	return expression("range", attrOrdered(unix.NFTA_RANGE_SREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_RANGE_OP, unix.NFT_RANGE_EQ),
		content(unix.NFTA_RANGE_FROM_DATA, first), content(unix.NFTA_RANGE_TO_DATA, last))
}

// lookup looks for the value of the register in a set of the same transaction. set is the number of the set.
func lookup(set uint32, not bool) attribute {
	of := []attribute{attrOrdered(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)}
	if not {
		of = append(of, attrOrdered(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
	}
	return expression("lookup", append(of, attrString(unix.NFTA_LOOKUP_SET, anonymous),
		attrOrdered(unix.NFTA_LOOKUP_SET_ID, set))...)
}

// masked clears the bits of the register that are not in bits. The function named or sets the bits of the register that
// are in bits.
func masked(bits uint32) attribute { return bitwise(native(bits), native(0)) }
func or(bits uint32) attribute     { return bitwise(native(^bits), native(bits)) }

// bitwise replaces the register by register & mask ^ xor.
func bitwise(mask, xor []byte) attribute {
	return expression("bitwise", attrOrdered(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_BITWISE_LEN, uint32(len(mask))), content(unix.NFTA_BITWISE_MASK, mask),
		content(unix.NFTA_BITWISE_XOR, xor))
}

// hton changes two bytes of the register from the kernel's byte order to the byte order of packets.
func hton() attribute {
	return expression("byteorder", attrOrdered(unix.NFTA_BYTEORDER_SREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_BYTEORDER_DREG, unix.NFT_REG_1),
		attrOrdered(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON), attrOrdered(unix.NFTA_BYTEORDER_LEN, 2),
		attrOrdered(unix.NFTA_BYTEORDER_SIZE, 2))
}

// setTCPOption puts size bytes of the register into an option of TCP.
func setTCPOption(kind byte, offset, size uint32) attribute {
	return expression("exthdr", attrOrdered(unix.NFTA_EXTHDR_SREG, unix.NFT_REG_1),
		attr(unix.NFTA_EXTHDR_TYPE, []byte{kind}),
		attrOrdered(unix.NFTA_EXTHDR_OFFSET, offset), attrOrdered(unix.NFTA_EXTHDR_LEN, size),
		attrOrdered(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT))
}

func counter() attribute {
	return expression("counter", attr(unix.NFTA_COUNTER_BYTES, make([]byte, 8)),
		attr(unix.NFTA_COUNTER_PACKETS, make([]byte, 8)))
}

// immediate loads a register with b.
func immediate(register uint32, b []byte) attribute {
	return expression("immediate", attrOrdered(unix.NFTA_IMMEDIATE_DREG, register),
		content(unix.NFTA_IMMEDIATE_DATA, b))
}

// The verdicts of linux/netfilter.h.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

func verdict(code uint32) attribute {
	return expression("immediate", attrOrdered(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nested(unix.NFTA_IMMEDIATE_DATA, nested(unix.NFTA_DATA_VERDICT, attrOrdered(unix.NFTA_VERDICT_CODE, code))))
}

func reset() attribute {
	return expression("reject", attrOrdered(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_TCP_RST),
		attr(unix.NFTA_REJECT_ICMP_CODE, []byte{0}))
}

func masq(flags uint32) attribute {
	return expression("masq", attrOrdered(unix.NFTA_MASQ_FLAGS, flags))
}

// nat translates an address. kind is unix.NFT_NAT_SNAT or unix.NFT_NAT_DNAT. to are attributes: the registers with the
// address and the ports, and flags.
func nat(kind uint32, family byte, to ...attribute) attribute {
	return expression("nat", append([]attribute{attrOrdered(unix.NFTA_NAT_TYPE, kind),
		attrOrdered(unix.NFTA_NAT_FAMILY, uint32(family))}, to...)...)
}

// expressions yields the name and the data of each expression of a rule.
func expressions(rule []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, e := range attrsOf(inside(rule, unix.NFTA_RULE_EXPRESSIONS)) {
			if !yield(unix.ByteSliceToString(inside(e, unix.NFTA_EXPR_NAME)), inside(e, unix.NFTA_EXPR_DATA)) {
				return
			}
		}
	}
}

// verdictOf returns the verdict of an expression "immediate". The second result is false if the expression loads
// another register instead.
func verdictOf(immediate []byte) (code uint32, is bool) {
	value := inside(immediate, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
	return ordered(value), value != nil
}
