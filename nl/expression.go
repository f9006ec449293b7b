// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// expression is a part of a rule's code: it loads a register, compares one, or acts on the packet. All expressions
// except the NAT expressions work in register 1. The kernel wants its numbers in network byte order. What is in a
// register has the byte order that it has in the packet, or in the kernel. See linux/netfilter/nf_tables.h.
func expression(name string, data ...attribute) attribute {
	return nested(unix.NFTA_LIST_ELEM, attrString(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

// nested is a nest that says so of itself.
func nested(typ int, inside ...attribute) attribute { return nest(unix.NLA_F_NESTED|typ, inside...) }

// content is what an expression compares a register with, or puts into one.
func content(typ int, b []byte) attribute { return nested(typ, attr(unix.NFTA_DATA_VALUE, b)) }

// native is a number as the kernel has it in a register.
func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// port is a port as a packet has it.
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

// payload loads size bytes of a header.
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

// lookup looks for the register in a set of the same transaction.
func lookup(set uint32, not bool) attribute {
	of := []attribute{attrOrdered(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)}
	if not {
		of = append(of, attrOrdered(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
	}
	return expression("lookup", append(of, attrString(unix.NFTA_LOOKUP_SET, anonymous),
		attrOrdered(unix.NFTA_LOOKUP_SET_ID, set))...)
}

// masked keeps only some bits of the register; or sets some of them.
func masked(bits uint32) attribute { return bitwise(native(bits), native(0)) }
func or(bits uint32) attribute     { return bitwise(native(^bits), native(bits)) }

// bitwise makes of the register: register & mask ^ xor.
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

// nat is unix.NFT_NAT_SNAT or unix.NFT_NAT_DNAT, with the registers of the address and the ports, and flags.
func nat(kind uint32, family byte, to ...attribute) attribute {
	return expression("nat", append([]attribute{attrOrdered(unix.NFTA_NAT_TYPE, kind),
		attrOrdered(unix.NFTA_NAT_FAMILY, uint32(family))}, to...)...)
}

// expressions are the names and the data of the expressions of a rule.
func expressions(rule []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, e := range attrsOf(inside(rule, unix.NFTA_RULE_EXPRESSIONS)) {
			if !yield(unix.ByteSliceToString(inside(e, unix.NFTA_EXPR_NAME)), inside(e, unix.NFTA_EXPR_DATA)) {
				return
			}
		}
	}
}

// verdictOf is the verdict of an immediate, if it is none that loads another register.
func verdictOf(immediate []byte) (code uint32, is bool) {
	value := inside(immediate, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
	return ordered(value), value != nil
}
