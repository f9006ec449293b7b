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

// check holds the invariants of the package: no address in two places, free counts that are true, limits kept.
func check(t *testing.T, sim *Sim) {
	t.Helper()
	taken := map[string]int{}
	owners := map[netip.Addr]string{}
	count := map[string]int{}
	places := map[string]string{}
	for _, e := range sim.ENIs() {
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
		if len(e.Addrs) == 0 {
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
	for id, sub := range sim.subnets {
		size := 1<<(32-sub.CIDR.Bits()) - 5
		if got := sub.pool.free; got != size-taken[id] {
			t.Errorf("%s: %d free, want %d-%d", id, got, size, taken[id])
		}
	}
	for _, i := range sim.Instances() {
		if count[i.ID] > i.limits.ENIs {
			t.Errorf("%s has %d ENIs", i.ID, count[i.ID])
		}
		for _, e := range i.ENIs() {
			if len(e.Addrs)+len(e.Prefixes) > i.limits.IPv4PerENI {
				t.Errorf("%s has %v %v", e.ID, e.Addrs, e.Prefixes)
			}
		}
	}
}

// TestRandomLives makes random calls, many of which are refused, and holds the invariants after each.
func TestRandomLives(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			sim, _ := start(t, world)
			run(t, sim, RunInstance{Type: "t3.small", Subnet: "subnet-tiny"})
			primary := map[string]netip.Addr{}
			done := 0
			for range 300 {
				call := randomCall(r, sim)
				if code, _ := post(t, sim, call); code == 200 {
					done++
				}
				check(t, sim)
				for _, e := range sim.ENIs() {
					if p, ok := primary[e.ID]; ok && p != e.Addrs[0] {
						t.Errorf("%s: the primary address of %s was %s and is %s", call, e.ID, p, e.Addrs[0])
					}
					primary[e.ID] = e.Addrs[0]
				}
				if t.Failed() {
					t.Fatalf("after %s", long(call))
				}
			}
			if done < 80 {
				t.Errorf("only %d of 300 calls did anything", done)
			}
		})
	}
}

// randomCall is about ENIs that exist and addresses that they or others may have.
func randomCall(r *rand.Rand, sim *Sim) string {
	enis := sim.ENIs()
	e, other := enis[r.IntN(len(enis))], enis[r.IntN(len(enis))]
	pick := func(choices ...string) string { return choices[r.IntN(len(choices))] }
	n := 1 + r.IntN(3)
	at := func(e ENI, i int) string { // an address of e's subnet
		a := e.CIDR.Addr()
		for range i {
			a = a.Next()
		}
		return a.String()
	}
	prefix := at(e, 16*r.IntN(4)) + "/28"
	if len(e.Prefixes) > 0 && r.IntN(2) == 0 {
		prefix = e.Prefixes[0].String()
	}
	addr := pick(at(e, r.IntN(256)), e.Addrs[r.IntN(len(e.Addrs))].String(), other.Addrs[r.IntN(len(other.Addrs))].String())
	subnet := pick("subnet-a", "subnet-b", "subnet-c", "subnet-tiny")
	return pick(
		fmt.Sprintf("CreateNetworkInterface SubnetId=%s %s=%d", subnet, pick("SecondaryPrivateIpAddressCount", "Ipv4PrefixCount"), n),
		fmt.Sprintf("CreateNetworkInterface SubnetId=%s PrivateIpAddress=%s", e.Subnet, addr),
		fmt.Sprintf("AttachNetworkInterface InstanceId=i-%d NetworkInterfaceId=%s DeviceIndex=%d", 1+r.IntN(2), e.ID, n),
		fmt.Sprintf("DetachNetworkInterface AttachmentId=%s", e.Attachment),
		fmt.Sprintf("DeleteNetworkInterface NetworkInterfaceId=%s", e.ID),
		fmt.Sprintf("AssignPrivateIpAddresses NetworkInterfaceId=%s %s=%d", e.ID, pick("SecondaryPrivateIpAddressCount", "Ipv4PrefixCount"), n),
		fmt.Sprintf("AssignPrivateIpAddresses NetworkInterfaceId=%s PrivateIpAddress.1=%s AllowReassignment=%s", e.ID, addr, pick("true", "false")),
		fmt.Sprintf("AssignPrivateIpAddresses NetworkInterfaceId=%s Ipv4Prefix.1=%s", e.ID, prefix),
		fmt.Sprintf("UnassignPrivateIpAddresses NetworkInterfaceId=%s PrivateIpAddress.1=%s", e.ID, addr),
		fmt.Sprintf("UnassignPrivateIpAddresses NetworkInterfaceId=%s Ipv4Prefix.1=%s", e.ID, prefix),
	)
}
