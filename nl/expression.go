// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"iter"

	"golang.org/x/sys/unix"
)

// expression returns one expression of a rule of nftables. An expression loads a value into a register, compares a
// register, or acts on the packet. Numbers in attributes are in network byte order. In a register, values of the packet
// are in network byte order. All other values, such as the mark, are in the CPU's byte order
// (linux/netfilter/nf_tables.h).
func expression(name string, data ...attribute) attribute {
	return nested(unix.NFTA_LIST_ELEM, attrString(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

// nested is like nest, but sets the flag NLA_F_NESTED.
func nested(typ int, inside ...attribute) attribute { return nest(unix.NLA_F_NESTED|typ, inside...) }

// dataAttr returns an attribute with a value. The expression compares this value with a register, or loads it into a
// register.
func dataAttr(typ int, b []byte) attribute { return nested(typ, attr(unix.NFTA_DATA_VALUE, b)) }

// nativeBytes returns a number in the CPU's byte order: see expression.
func nativeBytes(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func portBytes(v uint16) []byte { return binary.BigEndian.AppendUint16(nil, v) }

func meta(key uint32) attribute {
	return expression("meta", attrBigEndian(unix.NFTA_META_KEY, key),
		attrBigEndian(unix.NFTA_META_DREG, unix.NFT_REG_1))
}

func setMeta(key uint32) attribute {
	return expression("meta", attrBigEndian(unix.NFTA_META_KEY, key),
		attrBigEndian(unix.NFTA_META_SREG, unix.NFT_REG_1))
}

func ct(key uint32) attribute {
	return expression("ct", attrBigEndian(unix.NFTA_CT_KEY, key), attrBigEndian(unix.NFTA_CT_DREG, unix.NFT_REG_1))
}

func setCT(key uint32) attribute {
	return expression("ct", attrBigEndian(unix.NFTA_CT_KEY, key), attrBigEndian(unix.NFTA_CT_SREG, unix.NFT_REG_1))
}

func rt(key uint32) attribute {
	return expression("rt", attrBigEndian(unix.NFTA_RT_KEY, key), attrBigEndian(unix.NFTA_RT_DREG, unix.NFT_REG_1))
}

func fib(flags, result uint32) attribute {
	return expression("fib", attrBigEndian(unix.NFTA_FIB_DREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_FIB_FLAGS, flags), attrBigEndian(unix.NFTA_FIB_RESULT, result))
}

// payload loads a part of a packet's header into register 1. The part begins at offset, and has size bytes.
func payload(header, offset, size uint32) attribute {
	return expression("payload", attrBigEndian(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_PAYLOAD_BASE, header),
		attrBigEndian(unix.NFTA_PAYLOAD_OFFSET, offset), attrBigEndian(unix.NFTA_PAYLOAD_LEN, size))
}

// setPayload writes register 1 into a packet's header. The expression corrects no checksum.
func setPayload(header, offset, size uint32) attribute {
	return expression("payload", attrBigEndian(unix.NFTA_PAYLOAD_SREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_PAYLOAD_BASE, header),
		attrBigEndian(unix.NFTA_PAYLOAD_OFFSET, offset), attrBigEndian(unix.NFTA_PAYLOAD_LEN, size))
}

func equal(b []byte) attribute    { return compareExpr(unix.NFT_CMP_EQ, b) }
func notEqual(b []byte) attribute { return compareExpr(unix.NFT_CMP_NEQ, b) }
func notZero() attribute          { return notEqual(make([]byte, 4)) }

func compareExpr(how uint32, b []byte) attribute {
	return expression("cmp", attrBigEndian(unix.NFTA_CMP_SREG, unix.NFT_REG_1), attrBigEndian(unix.NFTA_CMP_OP, how),
		dataAttr(unix.NFTA_CMP_DATA, b))
}

func inRange(first, last []byte) attribute {
	return expression("range", attrBigEndian(unix.NFTA_RANGE_SREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_RANGE_OP, unix.NFT_RANGE_EQ),
		dataAttr(unix.NFTA_RANGE_FROM_DATA, first), dataAttr(unix.NFTA_RANGE_TO_DATA, last))
}

// lookupSet matches if the value in register 1 is in an anonymous set of the same transaction. With "not", it matches
// all other values. The argument setNumber is a result of addSet.
func lookupSet(setNumber uint32, not bool) attribute {
	of := []attribute{attrBigEndian(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)}
	if not {
		of = append(of, attrBigEndian(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV))
	}
	return expression("lookup", append(of, attrString(unix.NFTA_LOOKUP_SET, anonymous),
		attrBigEndian(unix.NFTA_LOOKUP_SET_ID, setNumber))...)
}

// keepBits clears the bits of register 1 that are 0 in the argument, and setBits sets the bits that are 1 in the
// argument.
func keepBits(bits uint32) attribute { return bitwise(nativeBytes(bits), nativeBytes(0)) }
func setBits(bits uint32) attribute  { return bitwise(nativeBytes(^bits), nativeBytes(bits)) }

// bitwise replaces the value of register 1 by (value & mask) ^ xor.
func bitwise(mask, xor []byte) attribute {
	return expression("bitwise", attrBigEndian(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_BITWISE_LEN, uint32(len(mask))), dataAttr(unix.NFTA_BITWISE_MASK, mask),
		dataAttr(unix.NFTA_BITWISE_XOR, xor))
}

// hton changes the first two bytes of register 1 from the CPU's byte order to network byte order.
func hton() attribute {
	return expression("byteorder", attrBigEndian(unix.NFTA_BYTEORDER_SREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_BYTEORDER_DREG, unix.NFT_REG_1),
		attrBigEndian(unix.NFTA_BYTEORDER_OP, unix.NFT_BYTEORDER_HTON), attrBigEndian(unix.NFTA_BYTEORDER_LEN, 2),
		attrBigEndian(unix.NFTA_BYTEORDER_SIZE, 2))
}

func setTCPOption(kind byte, offset, size uint32) attribute {
	return expression("exthdr", attrBigEndian(unix.NFTA_EXTHDR_SREG, unix.NFT_REG_1),
		attr(unix.NFTA_EXTHDR_TYPE, []byte{kind}),
		attrBigEndian(unix.NFTA_EXTHDR_OFFSET, offset), attrBigEndian(unix.NFTA_EXTHDR_LEN, size),
		attrBigEndian(unix.NFTA_EXTHDR_OP, unix.NFT_EXTHDR_OP_TCPOPT))
}

func counter() attribute {
	return expression("counter", attr(unix.NFTA_COUNTER_BYTES, make([]byte, 8)),
		attr(unix.NFTA_COUNTER_PACKETS, make([]byte, 8)))
}

func immediate(register uint32, b []byte) attribute {
	return expression("immediate", attrBigEndian(unix.NFTA_IMMEDIATE_DREG, register),
		dataAttr(unix.NFTA_IMMEDIATE_DATA, b))
}

// Verdicts of linux/netfilter.h.
const (
	verdictDrop   = 0
	verdictAccept = 1
)

func verdict(code uint32) attribute {
	return expression("immediate", attrBigEndian(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nested(unix.NFTA_IMMEDIATE_DATA, nested(unix.NFTA_DATA_VERDICT, attrBigEndian(unix.NFTA_VERDICT_CODE, code))))
}

func reset() attribute {
	return expression("reject", attrBigEndian(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_TCP_RST),
		attr(unix.NFTA_REJECT_ICMP_CODE, []byte{0}))
}

func masq(flags uint32) attribute {
	return expression("masq", attrBigEndian(unix.NFTA_MASQ_FLAGS, flags))
}

// nat translates the source or the destination of a packet. kind is unix.NFT_NAT_SNAT or unix.NFT_NAT_DNAT. targetAttrs
// name the registers with the new address and ports, and may have the flags of the translation.
func nat(kind uint32, family byte, targetAttrs ...attribute) attribute {
	return expression("nat", append([]attribute{attrBigEndian(unix.NFTA_NAT_TYPE, kind),
		attrBigEndian(unix.NFTA_NAT_FAMILY, uint32(family))}, targetAttrs...)...)
}

// expressions yields the name and the attributes of each expression of a rule.
func expressions(rule []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for _, e := range attrsOf(attrAt(rule, unix.NFTA_RULE_EXPRESSIONS)) {
			if !yield(unix.ByteSliceToString(attrAt(e, unix.NFTA_EXPR_NAME)), attrAt(e, unix.NFTA_EXPR_DATA)) {
				return
			}
		}
	}
}

// verdictOf returns the verdict of an expression "immediate". ok is false if the expression loads a value into a
// register instead.
func verdictOf(immediate []byte) (code uint32, ok bool) {
	value := attrAt(immediate, unix.NFTA_IMMEDIATE_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
	return bigEndianUint(value), value != nil
}
