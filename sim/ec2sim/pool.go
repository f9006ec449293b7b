// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/binary"
	"net/netip"
)

// A pool knows which addresses of one family are free in a subnet. It manages aligned blocks: a single address, or a
// delegated prefix. As in EC2, a pool can have free addresses, but no free block for a prefix. EC2 reserves the first
// four addresses and the last address (VPC Guide: "Subnet CIDR blocks").
type pool interface {
	// Takes free blocks, or none. The argument "bits" is the prefix length of each block, and "count" is the number of
	// blocks.
	takeAny(bits, count int) (blocks []netip.Prefix, ok bool)
	// Takes all of these blocks. If a block is in use, it takes none of the blocks, and returns the used block.
	takeThese(blocks []netip.Prefix) (used netip.Prefix, ok bool)
	putBack(blocks ...netip.Prefix) // puts blocks back into the pool
	isReserved(a netip.Addr) bool   // reports whether EC2 reserves the address
	freeAddrs() int                 // returns the number of free single addresses
}

// A bitmap is the pool of an IPv4 subnet, with a bit for each address.
type bitmap struct {
	cidr netip.Prefix
	used []uint64
	free int
	next int // where the search for a block begins: after the last block that was taken
}

// newBitmap returns the pool of an IPv4 block. It reserves the addresses for network, router, DNS, future use and
// broadcast.
func newBitmap(cidr netip.Prefix) *bitmap {
	size := 1 << (32 - cidr.Bits())
	p := &bitmap{cidr: cidr.Masked(), used: make([]uint64, (size+63)/64), free: size}
	for _, i := range []int{0, 1, 2, 3, size - 1} {
		p.setBits(i, 1)
	}
	return p
}

func (p *bitmap) size() int { return 1 << (32 - p.cidr.Bits()) }

// takeNext takes the next free block of this prefix length. The search begins after the block that takeNext took last.
func (p *bitmap) takeNext(bits int) (netip.Prefix, bool) {
	n, size := 1<<(32-bits), p.size()
	start := (p.next + n - 1) / n * n
	for i := range size / n {
		at := (start + i*n) % size
		if p.isFree(at, n) {
			p.setBits(at, n)
			p.next = at + n
			return netip.PrefixFrom(p.addrAt(at), bits), true
		}
	}
	return netip.Prefix{}, false
}

func (p *bitmap) takeAny(bits, count int) ([]netip.Prefix, bool) {
	if count > p.free {
		return nil, false
	}
	next, blocks := p.next, []netip.Prefix(nil)
	for range count {
		b, ok := p.takeNext(bits)
		if !ok {
			p.putBack(blocks...)
			p.next = next
			return nil, false
		}
		blocks = append(blocks, b)
	}
	return blocks, true
}

func (p *bitmap) takeThese(blocks []netip.Prefix) (used netip.Prefix, ok bool) {
	for done, b := range blocks {
		i, n := p.offsetOf(b.Addr()), 1<<(32-b.Bits())
		if !p.isFree(i, n) {
			p.putBack(blocks[:done]...)
			return b, false
		}
		p.setBits(i, n)
	}
	return netip.Prefix{}, true
}

func (p *bitmap) putBack(blocks ...netip.Prefix) {
	for _, b := range blocks {
		i, n := p.offsetOf(b.Addr()), 1<<(32-b.Bits())
		p.used[i/64] &^= bitMask(i, n)
		p.free += n
	}
}

func (p *bitmap) isReserved(a netip.Addr) bool {
	i := p.offsetOf(a)
	return i < 4 || i == p.size()-1
}

func (p *bitmap) freeAddrs() int { return p.free }

// isFree, setBits and bitMask work on the n bits from index i. These bits are in one word of the bitmap, because blocks
// are aligned and have at most 16 addresses.
func (p *bitmap) isFree(i, n int) bool { return p.used[i/64]&bitMask(i, n) == 0 }

func (p *bitmap) setBits(i, n int) {
	p.used[i/64] |= bitMask(i, n)
	p.free -= n
}

func bitMask(i, n int) uint64 { return (1<<n - 1) << (i % 64) }

func (p *bitmap) addrAt(i int) netip.Addr {
	base := p.cidr.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+uint32(i))
	return netip.AddrFrom4(a)
}

func (p *bitmap) offsetOf(a netip.Addr) int {
	base, b := p.cidr.Addr().As4(), a.As4()
	return int(binary.BigEndian.Uint32(b[:]) - binary.BigEndian.Uint32(base[:]))
}

func singleBlock(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func singleBlocks(addrs []netip.Addr) []netip.Prefix {
	blocks := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		blocks[i] = singleBlock(a)
	}
	return blocks
}

// addrsOf returns the addresses of blocks that have one address each.
func addrsOf(blocks []netip.Prefix) []netip.Addr {
	as := make([]netip.Addr, len(blocks))
	for i, b := range blocks {
		as[i] = b.Addr()
	}
	return as
}
