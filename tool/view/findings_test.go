// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestLagOfEC2 compares a registry with an EC2 that does not show an address or an ENI of the registry. If EC2 has just
// assigned this address or attached this ENI, EC2 may lag. Then no finding may tell an operator to delete a pod. An old
// lease, or an address that has been free for long, proves that EC2 does not lag.
func TestLagOfEC2(t *testing.T) {
	now := time.Now()
	fresh, old := now.Add(-2*time.Second), now.Add(-time.Hour)
	primary, a := netip.MustParseAddr("10.0.1.4"), netip.MustParseAddr("10.0.1.5")
	block := netip.MustParsePrefix("10.0.1.16/28")
	shown := []aws.ENI{{ID: "eni-2", Status: "in-use", Addrs: []netip.Addr{primary}}}
	moved := append(shown[:1:1], aws.ENI{ID: "eni-3", Status: "in-use", Addrs: []netip.Addr{a}})
	leased := func(a netip.Addr, since time.Time) func(*registry.State) {
		return func(s *registry.State) {
			s.Leases.Set(a, registry.Lease{ENI: "eni-2", Bound: true, Since: since, PodNamespace: "default",
				PodName: "web"})
		}
	}
	freed := func(since time.Time) func(*registry.State) {
		return func(s *registry.State) { s.Free.Set(a, since) }
	}
	delegated := func(grown, since time.Time, of func(*registry.State)) func(*registry.State) {
		return func(s *registry.State) {
			e := s.ENIs["eni-2"]
			e.Grown, e.Addrs, e.Prefixes = grown, e.Addrs[:1], []registry.Prefix{{CIDR: block, Since: since}}
			s.ENIs["eni-2"] = e
			of(s)
		}
	}
	nothing := func(*registry.State) {}
	for name, c := range map[string]struct {
		grown time.Time
		ec2   []aws.ENI
		state func(*registry.State)
		about string
		lost  bool
	}{
		"an ENI was just attached":           {fresh, nil, nothing, "eni-2", false},
		"an ENI was detached":                {old, nil, nothing, "eni-2", true},
		"a pod on a new address":             {fresh, shown, leased(a, fresh), a.String(), false},
		"a pod has lost its address":         {old, shown, leased(a, fresh), a.String(), true},
		"an old pod on an ENI that grows":    {fresh, shown, leased(a, old), a.String(), true},
		"a new address moved":                {fresh, moved, leased(a, fresh), a.String(), false},
		"an address moved":                   {old, moved, leased(a, old), a.String(), true},
		"a new address is free":              {fresh, shown, freed(time.Time{}), a.String(), false},
		"a free address is gone":             {old, shown, freed(time.Time{}), a.String(), true},
		"a used address of an ENI that grew": {fresh, shown, freed(old), a.String(), true},
		"a free address moved":               {old, moved, freed(old), a.String(), true},
		"a new prefix":                       {old, shown, delegated(old, fresh, nothing), block.String(), false},
		"a prefix is gone":                   {fresh, shown, delegated(fresh, old, nothing), block.String(), true},
		"a pod on a new prefix": {old, shown, delegated(old, fresh, leased(block.Addr(), fresh)),
			block.Addr().String(), false},
		"a pod has lost its prefix": {fresh, shown, delegated(fresh, old, leased(block.Addr(), fresh)),
			block.Addr().String(), true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &registry.State{ENIs: map[string]registry.ENI{
				"eni-2": {MAC: "06:00:00:00:00:02", Index: 1, Link: "eth1", Serving: true, Grown: c.grown,
					Addrs: []netip.Addr{primary, a}},
				"eni-3": {MAC: "06:00:00:00:00:03", Index: 2, Link: "eth2", Serving: true, Grown: old},
			}}
			c.state(s)
			ec2 := c.ec2
			if len(ec2) < 2 {
				ec2 = append(ec2[:len(ec2):len(ec2)], aws.ENI{ID: "eni-3", Status: "in-use"})
			}
			o := Observation{Now: now, State: s, EC2: Said{true, ec2},
				Links: map[string]string{"06:00:00:00:00:02": "eth1", "06:00:00:00:00:03": "eth2"}}
			for at := range s.Leases.Keys() {
				o.Used = append(o.Used, UsedAddr{"06:00:00:00:00:02", at, "/run/netns/web"})
			}
			found := 0
			for _, f := range o.Compare(func(string) time.Duration { return time.Minute }).Findings() {
				if f.About == c.about {
					found++
				}
				if f.About == c.about && f.Harmless == c.lost || !c.lost && !f.Harmless {
					t.Errorf("%s: %s\n    %s", f.About, f.Means, f.Do)
				}
			}
			if found != 1 {
				t.Errorf("got %d findings about %s, want 1", found, c.about)
			}
		})
	}
}

// TestFindingsDraining: an ENI is draining. The configuration and the ENI's state in EC2 decide which program or person
// must finish its deletion.
func TestFindingsDraining(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		keeps    bool
		request  bool
		status   string
		noted    time.Time
		want     string
		harmless bool
	}{
		"the node deletes ENIs":     {false, false, "available", time.Time{}, "finishes the deletion", true},
		"the ENI is still attached": {true, false, "in-use", time.Time{}, "pods can have its addresses", true},
		"the ENI is detached":       {true, false, "available", now.Add(-time.Hour), "remove-interface eni-2", false},
		"the ENI was just detached": {true, false, "available", now.Add(-time.Second), "registry-gc", true},
		"EC2 has no such ENI":       {true, false, "", now.Add(-time.Hour), "registry-gc", true},
		"an ENI on request":         {false, true, "in-use", time.Time{}, "registry-gc detaches", true},
		"a request and provision":   {true, true, "in-use", time.Time{}, "registry-gc detaches", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &registry.State{ENIs: map[string]registry.ENI{
				"eni-2": {MAC: "06:00:00:00:00:02", Index: 1, Managed: !c.request, OnRequest: c.request,
					Draining: true, Detaching: c.noted}}}
			o := Observation{Now: now, State: s, KeepsENIs: c.keeps, EC2: Said{Answered: true}}
			if c.status != "" {
				o.EC2.ENIs = []aws.ENI{{ID: "eni-2", Status: c.status}}
			}
			fs := o.Compare(func(string) time.Duration { return time.Minute }).Findings()
			if len(fs) != 1 || !strings.Contains(fs[0].Do, c.want) || fs[0].Harmless != c.harmless {
				t.Errorf("got %+v, want %q", fs, c.want)
			}
		})
	}
}

// TestFindingsBegun: a killed ADD has created an ENI. It depends on the configuration whether registry-gc or an
// operator deletes this ENI.
func TestFindingsBegun(t *testing.T) {
	for keeps, want := range map[bool]string{false: "registry-gc deletes this ENI", true: "remove-interface eni-2"} {
		s := &registry.State{Instance: registry.Instance{ID: "i-1"},
			Intents: map[string]registry.Intent{"a": {Action: book.AttachAction, ENI: "eni-2"}}}
		o := Observation{Now: time.Now(), State: s, KeepsENIs: keeps, EC2: Said{true, []aws.ENI{{ID: "eni-2",
			Status: "available", Tags: map[string]string{book.TagInstance: "i-1", book.TagManaged: "true"}}}}}
		fs := o.Compare(func(string) time.Duration { return time.Minute }).Findings()
		if len(fs) != 2 || !strings.Contains(fs[1].Do, want) { // the first finding says that the registry has no ENIs
			t.Errorf("got %+v, want %q", fs, want)
		}
	}
}
