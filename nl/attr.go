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

// An attribute is a struct rtattr of rtnetlink(7) with its value, as the kernel reads it: padded to four bytes. Several
// attributes in a row form a list of attributes. Package netlink builds a tree of attributes instead, with several
// allocations for each attribute.
type attribute []byte

func attr(typ int, value []byte) attribute { return append(header(typ, len(value)), value...).pad() }

func attrAddr(typ int, a netip.Addr) attribute {
	if a.Is4() {
		b := a.As4()
		return attr(typ, b[:])
	}
	return attr(typ, a.AsSlice())
}

func attr16(typ int, v uint16) attribute {
	return attribute(binary.NativeEndian.AppendUint16(header(typ, 2), v)).pad()
}

func attr32(typ int, v uint32) attribute {
	return binary.NativeEndian.AppendUint32(header(typ, 4), v)
}

// attrOrdered is a number in network byte order, as nftables wants it.
func attrOrdered(typ int, v uint32) attribute {
	return binary.BigEndian.AppendUint32(header(typ, 4), v)
}

// attrString is a text and the zero at its end.
func attrString(typ int, s string) attribute {
	return append(append(header(typ, len(s)+1), s...), 0).pad()
}

// nest is an attribute whose value is a list of attributes.
func nest(typ int, inside ...attribute) attribute {
	size := 0
	for _, a := range inside {
		size += len(a)
	}
	b := header(typ, size)
	for _, a := range inside {
		b = append(b, a...)
	}
	return b
}

// header returns the beginning of an attribute. The slice has room for size bytes of the value, and for the padding.
func header(typ, size int) attribute {
	b := make(attribute, 0, aligned(unix.SizeofRtAttr+size))
	return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+size)),
		uint16(typ))
}

func (a attribute) pad() attribute { return a[:aligned(len(a))] } // header has made a slice whose unused room has zeros

func aligned(size int) int { return (size + unix.NLA_ALIGNTO - 1) &^ (unix.NLA_ALIGNTO - 1) }

// attrsOf yields the type and the value of each attribute of a message. attrsOf stops at an incomplete attribute.
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

// number reads a number of one, two or four bytes. For other sizes it returns 0.
func number(b []byte) uint32 {
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

// ordered reads a number of four bytes in network byte order, as nftables writes it.
func ordered(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// inside follows a path of attributes, each inside the one before, and returns the value of the last attribute. It
// returns nil if an attribute is missing.
func inside(list []byte, types ...int) (value []byte) {
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
