// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestPoolSizes(t *testing.T) {
	for block, want := range map[string]int{"10.0.0.0/28": 11, "10.0.0.0/24": 251, "10.0.0.0/16": 65531} {
		p := newBitmap(cidr(block))
		if p.free != want {
			t.Errorf("%s: %d free, want %d", block, p.free, want)
		}
		if _, ok := p.takeAny(32, want+1); ok || p.free != want {
			t.Errorf("%s: more than all was given, or some was kept: %d", block, p.free)
		}
		all, ok := p.takeAny(32, want)
		if !ok || p.free != 0 || len(all) != want {
			t.Errorf("%s: %d of %d given", block, len(all), want)
		}
	}
}

// TestPoolPrefixes: the pool gives every /28 except the first /28 and the last /28, which have reserved addresses.
func TestPoolPrefixes(t *testing.T) {
	p := newBitmap(cidr("10.0.0.0/24"))
	all, ok := p.takeAny(28, 14)
	if !ok || all[0] != cidr("10.0.0.16/28") || all[13] != cidr("10.0.0.224/28") {
		t.Errorf("%v", all)
	}
	if _, ok := p.takeNext(28); ok || p.free != 251-14*16 {
		t.Errorf("a fifteenth, or %d left", p.free)
	}
}

// TestSparsePool: the pool gives every /80 except the first /80 and the last /80, which have reserved addresses.
func TestSparsePool(t *testing.T) {
	p := newSparse(cidr("2001:db8:1:4::/64"))
	all, ok := p.takeAny(80, 1<<16-2)
	if !ok || all[0] != cidr("2001:db8:1:4:1::/80") || all[len(all)-1] != cidr("2001:db8:1:4:fffe::/80") {
		t.Fatalf("%d prefixes, from %s to %s", len(all), all[0], all[len(all)-1])
	}
	if more, ok := p.takeAny(80, 1); ok {
		t.Errorf("%v too many", more)
	}
	p.putBack(all[7])
	if again, ok := p.takeAny(80, 2); ok {
		t.Errorf("one was released, and EC2 gave %v", again)
	}
	if again, ok := p.takeAny(80, 1); !ok || again[0] != all[7] {
		t.Errorf("got %v, want %s", again, all[7])
	}
	for _, a := range []string{"2001:db8:1:4::", "2001:db8:1:4::3", "2001:db8:1:4:ffff:ffff:ffff:ffff"} {
		if !p.isReserved(cidr(a + "/128").Addr()) {
			t.Errorf("%s is not reserved", a)
		}
	}
	if singles, ok := p.takeAny(128, 3); !ok || singles[0] != cidr("2001:db8:1:4::4/128") ||
		singles[2] != cidr("2001:db8:1:4::6/128") {
		t.Errorf("%v", singles)
	}
}

// TestSparsePoolOfABigSubnet: a pool for a block larger than a /64 also gives prefixes outside of the first /64.
func TestSparsePoolOfABigSubnet(t *testing.T) {
	p := newSparse(cidr("2001:db8:1::/56"))
	all, ok := p.takeAny(80, 1<<16)
	if want := cidr("2001:db8:1:1::/80"); !ok || all[len(all)-1] != want {
		t.Errorf("the last is %s, want %s", all[len(all)-1], want)
	}
	if p.lastAddr() != cidr("2001:db8:1:ff:ffff:ffff:ffff:ffff/128").Addr() {
		t.Errorf("last %s", p.lastAddr())
	}
}

// TestPoolAgainstMap takes and returns blocks at random, and compares the pool with a map.
func TestPoolAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, mine := newBitmap(cidr("10.0.0.0/23")), map[netip.Addr]netip.Prefix{}
	var blocks []netip.Prefix
	for range 5000 {
		bits := []int{32, 32, 32, 28}[r.IntN(4)]
		if r.IntN(2) == 0 && len(blocks) > 0 {
			i := r.IntN(len(blocks))
			p.putBack(blocks[i])
			for a := blocks[i].Addr(); blocks[i].Contains(a); a = a.Next() {
				delete(mine, a)
			}
			blocks = append(blocks[:i], blocks[i+1:]...)
		} else if b, ok := p.takeNext(bits); ok {
			for a := b.Addr(); b.Contains(a); a = a.Next() {
				if other, ok := mine[a]; ok || p.isReserved(a) {
					t.Fatalf("%s given, and %s before it", b, other)
				}
				mine[a] = b
			}
			blocks = append(blocks, b)
		}
		if p.free != 512-5-len(mine) {
			t.Fatalf("%d free, %d given", p.free, len(mine))
		}
	}
}
