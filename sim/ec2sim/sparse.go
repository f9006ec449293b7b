// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"encoding/binary"
	"math"
	"net/netip"
)

// sparse is the pool of an IPv6 subnet. It stores the used addresses and prefixes, because the subnet has too many
// addresses for a bitmap. EC2 chooses addresses and prefixes at random, but the simulator chooses them in ascending
// order. It takes single addresses from the first /80. This /80 is never a delegated prefix, because it has reserved
// addresses. The simulator takes prefixes from the later blocks.
type sparse struct {
	cidr      netip.Prefix
	taken     map[netip.Prefix]bool // addresses and prefixes
	singlesIn map[netip.Prefix]int  // for each /80, how many of its single addresses are used
	addr      uint64                // the next address to try, as an offset from the subnet's first address
	prefix    uint64                // the next prefix to try: its number in the subnet
	prefixes  uint64                // the number of prefixes in the subnet
}

// newSparse returns the pool of an IPv6 block. The prefix length of the block must be at most 64.
func newSparse(cidr netip.Prefix) *sparse {
	return &sparse{
		cidr:      cidr.Masked(),
		taken:     map[netip.Prefix]bool{},
		singlesIn: map[netip.Prefix]int{},
		addr:      4,
		prefix:    1,
		prefixes:  1 << (prefixBits6 - cidr.Bits()),
	}
}

func (p *sparse) takeAny(bits, count int) ([]netip.Prefix, bool) {
	addr, prefix, blocks := p.addr, p.prefix, []netip.Prefix(nil)
	for range count {
		b, ok := p.nextFree(bits)
		if !ok {
			p.putBack(blocks...)
			p.addr, p.prefix = addr, prefix
			return nil, false
		}
		p.markTaken(b)
		blocks = append(blocks, b)
	}
	return blocks, true
}

// nextFree returns the next free block. The argument "bits" is the prefix length of the block. After the last prefix,
// nextFree starts again with the first. It tries each single address only once, because no simulation uses all
// addresses of a subnet.
func (p *sparse) nextFree(bits int) (netip.Prefix, bool) {
	for bits != prefixBits6 {
		b := singleBlock(p.addrAt(0, p.addr))
		p.addr++
		if p.isFree(b) {
			return b, true
		}
	}
	for range p.prefixes {
		b := netip.PrefixFrom(p.addrAt(p.prefix>>16, p.prefix<<48), prefixBits6)
		p.prefix = (p.prefix + 1) % p.prefixes
		if p.isFree(b) {
			return b, true
		}
	}
	return netip.Prefix{}, false
}

func (p *sparse) takeThese(blocks []netip.Prefix) (used netip.Prefix, ok bool) {
	for done, b := range blocks {
		if !p.isFree(b) {
			p.putBack(blocks[:done]...)
			return b, false
		}
		p.markTaken(b)
	}
	return netip.Prefix{}, true
}

func (p *sparse) putBack(blocks ...netip.Prefix) {
	for _, b := range blocks {
		delete(p.taken, b)
		if in := prefixAround(b); in != b {
			p.singlesIn[in]--
		}
	}
}

func (p *sparse) isReserved(a netip.Addr) bool { return a == p.lastAddr() || a.Less(p.addrAt(0, 4)) }

// freeAddrs returns the largest int, because the number of addresses is practically unlimited.
func (p *sparse) freeAddrs() int { return math.MaxInt }

// isFree reports whether a block is free. A single address is free if neither the address nor its /80 is taken. A /80
// is free if neither the /80 nor any of its single addresses is taken. A /80 with a reserved address is never free.
func (p *sparse) isFree(b netip.Prefix) bool {
	in := prefixAround(b)
	if b == in && (b.Contains(p.cidr.Addr()) || b.Contains(p.lastAddr()) || p.singlesIn[b] > 0) {
		return false
	}
	return !p.taken[b] && !p.taken[in]
}

func (p *sparse) markTaken(b netip.Prefix) {
	p.taken[b] = true
	if in := prefixAround(b); in != b {
		p.singlesIn[in]++
	}
}

// prefixAround returns the /80 that contains the block.
func prefixAround(b netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(b.Addr(), prefixBits6).Masked()
}

// addrAt returns the address at an offset from the subnet's first address. The offset has two halves of 64 bits.
func (p *sparse) addrAt(high, low uint64) netip.Addr {
	a := p.cidr.Addr().As16()
	binary.BigEndian.PutUint64(a[:8], binary.BigEndian.Uint64(a[:8])|high)
	binary.BigEndian.PutUint64(a[8:], low)
	return netip.AddrFrom16(a)
}

func (p *sparse) lastAddr() netip.Addr { return p.addrAt(1<<(64-p.cidr.Bits())-1, math.MaxUint64) }
