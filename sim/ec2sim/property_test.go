// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// check checks that no address and no device index belongs to two ENIs, and that no limit is exceeded. It also checks
// that the pools agree with the ENIs.
func check(t *testing.T, sim *Sim) {
	t.Helper()
	enis := sim.ENIs()
	checkIPv4(t, sim, enis)
	checkIPv6(t, sim, enis)
	count := map[string]int{}
	places := map[string]string{}
	for _, e := range enis {
		if len(e.Addrs) == 0 && e.CIDR.IsValid() {
			t.Errorf("%s has no primary address", e.ID)
		}
		if e.Instance != "" {
			place := fmt.Sprintf("%s card %d index %d", e.Instance, e.Card, e.Index)
			if other, ok := places[place]; ok {
				t.Errorf("%s and %s are both at %s", e.ID, other, place)
			}
			places[place] = e.ID
			count[e.Instance]++
		}
	}
	for _, i := range sim.Instances() {
		if count[i.ID] > i.limits.ENIs {
			t.Errorf("%s has %d ENIs", i.ID, count[i.ID])
		}
		for _, e := range i.ENIs() {
			if len(e.Addrs)+len(e.Prefixes) > i.limits.IPv4PerENI ||
				len(e.IPv6Addrs)+len(e.IPv6Prefixes) > i.limits.IPv6PerENI {
				t.Errorf("%s has %v %v %v %v", e.ID, e.Addrs, e.Prefixes, e.IPv6Addrs, e.IPv6Prefixes)
			}
		}
	}
}

func checkIPv4(t *testing.T, sim *Sim, enis []ENI) {
	t.Helper()
	taken := map[string]int{}
	owners := map[netip.Addr]string{}
	for _, e := range enis {
		all := slices.Clone(e.Addrs)
		for _, p := range e.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				all = append(all, a)
			}
		}
		for _, a := range all {
			if o, ok := owners[a]; ok {
				t.Errorf("%s is on %s and on %s", a, o, e.ID)
			}
			if !e.CIDR.Contains(a) {
				t.Errorf("%s of %s is not in %s", a, e.ID, e.Subnet)
			}
			owners[a] = e.ID
		}
		taken[e.Subnet] += len(all)
	}
	for id, sub := range sim.subnets {
		if sub.v4 == nil {
			continue
		}
		size := 1<<(32-sub.CIDR.Bits()) - 5
		if got := sub.freeIPv4(); got != size-taken[id] {
			t.Errorf("%s: %d free, want %d-%d", id, got, size, taken[id])
		}
	}
}

// checkIPv6 checks that no two blocks of the ENIs overlap, and that the pools have exactly these blocks as taken.
func checkIPv6(t *testing.T, sim *Sim, enis []ENI) {
	t.Helper()
	owners := map[netip.Prefix]string{}
	inside := map[netip.Prefix]int{}
	for _, e := range enis {
		for _, b := range append(singleBlocks(e.IPv6Addrs), e.IPv6Prefixes...) {
			if o, ok := owners[b]; ok {
				t.Errorf("%s is on %s and on %s", b, o, e.ID)
			}
			if !e.IPv6CIDR.Contains(b.Addr()) {
				t.Errorf("%s of %s is not in %s", b, e.ID, e.Subnet)
			}
			owners[b] = e.ID
			if b.Bits() == 128 {
				inside[prefixAround(b)]++
			}
		}
	}
	for p, n := range inside {
		if o, ok := owners[p]; ok {
			t.Errorf("%d addresses of %s, which is %s's", n, p, o)
		}
	}
	taken := 0
	for id, sub := range sim.subnets {
		if sub.v6 == nil {
			continue
		}
		p := sub.v6.pool.(*sparse)
		taken += len(p.taken)
		for in, n := range p.singlesIn {
			if n != inside[in] {
				t.Errorf("%s: %d addresses in %s, want %d", id, n, in, inside[in])
			}
		}
	}
	if taken != len(owners) {
		t.Errorf("%d IPv6 blocks are taken, ENIs have %d", taken, len(owners))
	}
}

// TestRandomLives makes random calls, and calls check after each of them. EC2 refuses many of the calls.
func TestRandomLives(t *testing.T) {
	done := map[string]int{}
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			sim, _ := start(t, world)
			run(t, sim, RunInstance{Type: "t3.small", Subnet: "subnet-tiny"})
			run(t, sim, RunInstance{Type: "t3.small", Subnet: "subnet-six", IPv6: 2})
			primary := map[string]netip.Addr{}
			for range 450 {
				call, action := randomCall(r, sim)
				if code, _ := post(t, sim, call); code == 200 {
					done[action]++
				}
				check(t, sim)
				for _, e := range sim.ENIs() {
					if len(e.Addrs) == 0 {
						continue
					}
					if p, ok := primary[e.ID]; ok && p != e.Addrs[0] {
						t.Errorf("%s: the primary address of %s was %s and is %s", call, e.ID, p, e.Addrs[0])
					}
					primary[e.ID] = e.Addrs[0]
				}
				if t.Failed() {
					t.Fatalf("after %s", long(call))
				}
			}
		})
	}
	for action, want := range map[string]int{
		"CreateNetworkInterface": 200, "AttachNetworkInterface": 20, "DetachNetworkInterface": 20,
		"DeleteNetworkInterface":   200,
		"AssignPrivateIpAddresses": 100, "UnassignPrivateIpAddresses": 30, "AssignIpv6Addresses": 100,
		"UnassignIpv6Addresses": 30,
	} {
		if done[action] < want {
			t.Errorf("only %d times %s", done[action], action)
		}
	}
}

// randomCall returns a random call for an ENI that exists. The addresses in the call may belong to another ENI.
func randomCall(r *rand.Rand, sim *Sim) (call, action string) {
	enis := sim.ENIs()
	e, other := enis[r.IntN(len(enis))], enis[r.IntN(len(enis))]
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	n := 1 + r.IntN(3)
	subnet := pick("subnet-a", "subnet-b", "subnet-c", "subnet-tiny", "subnet-dual", "subnet-six", "subnet-dual")
	v4, v4count := randomIPv4(r, e, other), pick("SecondaryPrivateIpAddressCount", "Ipv4PrefixCount")
	v6, v6count := randomIPv6(r, e, other), pick("Ipv6AddressCount", "Ipv6PrefixCount")
	action = pick("CreateNetworkInterface", "AttachNetworkInterface", "DetachNetworkInterface",
		"DeleteNetworkInterface",
		"AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "AssignIpv6Addresses", "UnassignIpv6Addresses")
	about := " NetworkInterfaceId=" + e.ID
	params := map[string]func() string{
		"CreateNetworkInterface": func() string {
			return " SubnetId=" + subnet + pick("", fmt.Sprintf(" %s=%d", v4count, n)) + pick("",
				fmt.Sprintf(" %s=%d", v6count, n))
		},
		"AttachNetworkInterface": func() string {
			return fmt.Sprintf("%s InstanceId=i-%d DeviceIndex=%d", about, 1+r.IntN(3), n)
		},
		"DetachNetworkInterface": func() string { return " AttachmentId=" + e.Attachment },
		"DeleteNetworkInterface": func() string { return about },
		"AssignPrivateIpAddresses": func() string {
			return about + pick(fmt.Sprintf(" %s=%d", v4count, n), v4, v4+" AllowReassignment=true")
		},
		"UnassignPrivateIpAddresses": func() string { return about + v4 },
		"AssignIpv6Addresses":        func() string { return about + pick(fmt.Sprintf(" %s=%d", v6count, n), v6) },
		"UnassignIpv6Addresses":      func() string { return about + v6 },
	}
	return action + params[action](), action
}

// randomIPv4 returns a parameter with an address or a prefix that an ENI has, or with a random address or prefix.
func randomIPv4(r *rand.Rand, e, other ENI) string {
	at := cidr("10.0.0.0/24").Addr() // also if the subnet has no IPv4
	if e.CIDR.IsValid() {
		at = e.CIDR.Addr()
	}
	base := at.As4()
	base[3] = byte(r.IntN(256))
	addrs := append(slices.Concat(e.Addrs, other.Addrs), netip.AddrFrom4(base))
	base[3] = byte(16 * r.IntN(4))
	prefixes := append(slices.Clone(e.Prefixes), netip.PrefixFrom(netip.AddrFrom4(base), 28))
	if r.IntN(2) == 0 {
		return " PrivateIpAddress.1=" + addrs[r.IntN(len(addrs))].String()
	}
	return " Ipv4Prefix.1=" + prefixes[r.IntN(len(prefixes))].String()
}

// randomIPv6 returns a parameter with an address or a prefix, perhaps in a prefix of another ENI.
func randomIPv6(r *rand.Rand, e, other ENI) string {
	base := cidr("2001:db8:1:4::/64").Addr().As16()
	if e.IPv6CIDR.IsValid() {
		base = e.IPv6CIDR.Addr().As16()
	}
	base[9] = byte(r.IntN(6))
	prefixes := append(slices.Clone(e.IPv6Prefixes), netip.PrefixFrom(netip.AddrFrom16(base), 80))
	base[15] = byte(r.IntN(12))
	addrs := append(slices.Concat(e.IPv6Addrs, other.IPv6Addrs), netip.AddrFrom16(base))
	if r.IntN(2) == 0 {
		return " Ipv6Addresses.1=" + addrs[r.IntN(len(addrs))].String()
	}
	return " Ipv6Prefix.1=" + prefixes[r.IntN(len(prefixes))].String()
}
