// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// An attribute is a struct rtattr of rtnetlink(7), followed by the attribute's value and by padding. The padding makes
// the attribute's length a multiple of four bytes. We do not use the attributes of vishvananda/netlink: these are
// trees, and each attribute needs several allocations.
type attribute []byte

func attr(typ int, value []byte) attribute {
	return append(attrHeader(typ, len(value)), value...).pad()
}

func attrAddr(typ int, a netip.Addr) attribute {
	if a.Is4() {
		b := a.As4()
		return attr(typ, b[:])
	}
	return attr(typ, a.AsSlice())
}

func attr16(typ int, v uint16) attribute {
	return attribute(binary.NativeEndian.AppendUint16(attrHeader(typ, 2), v)).pad()
}

func attr32(typ int, v uint32) attribute {
	return binary.NativeEndian.AppendUint32(attrHeader(typ, 4), v)
}

// attrBigEndian returns an attribute whose value is a number in network byte order, as nftables needs it.
func attrBigEndian(typ int, v uint32) attribute {
	return binary.BigEndian.AppendUint32(attrHeader(typ, 4), v)
}

// attrString returns an attribute whose value is a string with a zero byte at its end.
func attrString(typ int, s string) attribute {
	return append(append(attrHeader(typ, len(s)+1), s...), 0).pad()
}

// nest returns an attribute whose value is a list of attributes.
func nest(typ int, inside ...attribute) attribute {
	size := 0
	for _, a := range inside {
		size += len(a)
	}
	b := attrHeader(typ, size)
	for _, a := range inside {
		b = append(b, a...)
	}
	return b
}

// attrHeader returns the header of an attribute. The slice has capacity for a value of size bytes, and for the padding.
func attrHeader(typ, size int) attribute {
	b := make(attribute, 0, aligned(unix.SizeofRtAttr+size))
	return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+size)),
		uint16(typ))
}

func (a attribute) pad() attribute { return a[:aligned(len(a))] } // attrHeader has filled the capacity with zeros

func aligned(size int) int { return (size + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// attrsOf yields the type and the value of each attribute of the list b. attrsOf stops at an incomplete attribute.
func attrsOf(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size, typ := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
			if size < unix.SizeofNlAttr || size > len(b) || !yield(int(typ&nl.NLA_TYPE_MASK),
				b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min(aligned(size), len(b)):]
		}
	}
}

// nativeUint decodes a number of one, two or four bytes, in the CPU's byte order. For any other size, nativeUint
// returns 0.
func nativeUint(b []byte) uint32 {
	switch len(b) {
	case 1:
		return uint32(b[0])
	case 2:
		return uint32(binary.NativeEndian.Uint16(b))
	case 4:
		return binary.NativeEndian.Uint32(b)
	}
	return 0
}

// bigEndianUint decodes a number of four bytes in network byte order, which nftables uses. For any other size,
// bigEndianUint returns 0.
func bigEndianUint(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// attrAt returns the value of a nested attribute, or nil if there is none. The slice "types" has the attribute's type
// at each level, the outermost first.
func attrAt(list []byte, types ...int) (value []byte) {
	for _, want := range types {
		value = nil
		for typ, v := range attrsOf(list) {
			if typ == want {
				value = v
			}
		}
		list = value
	}
	return value
}

func addrFrom(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}
