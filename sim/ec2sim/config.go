// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// New starts a simulator. The error lists all mistakes of the Config.
func New(c Config) (*Sim, error) {
	c = c.complete()
	if err := c.validate(); err != nil {
		return nil, err
	}
	s := &Sim{
		cfg:        c,
		vpcs:       map[string]*VPC{},
		types:      map[string]InstanceType{},
		subnets:    map[string]*subnet{},
		enis:       map[string]*eni{},
		instances:  map[string]*Instance{},
		tokens:     map[string]created{},
		counts:     map[string]int{},
		keys:       map[string]*keyPair{},
		madeGroups: map[string]*securityGroup{},
		faults:     map[string]*fault{},
		objects:    map[string]*refusal{},
		delays:     map[string]time.Duration{},
		losses:     map[string]int{},
		scripts:    map[string][]Outcome{},
		buckets:    newBuckets(c),
	}
	for i := range c.VPCs {
		s.vpcs[c.VPCs[i].ID] = &c.VPCs[i]
	}
	for _, sub := range c.Subnets {
		s.subnets[sub.ID] = newSubnet(sub)
	}
	for _, t := range slices.Concat(builtin, c.InstanceTypes) {
		s.types[t.Name] = t
		s.maxIPv4, s.maxIPv6 = max(s.maxIPv4, t.IPv4PerENI), max(s.maxIPv6, t.IPv6PerENI)
	}
	s.lag = newLagging(c.Lag)
	s.saveMoment()
	return s, nil
}

// complete returns a copy of the Config in which Region, Account and the empty fields of Peerings have their defaults.
func (c Config) complete() Config {
	c.Region, c.Account = cmp.Or(c.Region, "us-east-1"), cmp.Or(c.Account, "123456789012")
	c.VPCs, c.Subnets, c.Peerings = slices.Clone(c.VPCs), slices.Clone(c.Subnets), slices.Clone(c.Peerings)
	for i := range c.VPCs {
		c.VPCs[i].Tags = copyTags(c.VPCs[i].Tags)
	}
	for i := range c.Subnets {
		c.Subnets[i].Tags = copyTags(c.Subnets[i].Tags)
	}
	for i := range c.Peerings {
		p := &c.Peerings[i]
		p.Status = cmp.Or(p.Status, "active")
		p.Requester, p.Accepter = c.completePeer(p.Requester), c.completePeer(p.Accepter)
	}
	return c
}

// copyTags returns a copy of the tags, because CreateTags changes the simulator's map, and must not change the caller's
// map.
func copyTags(tags map[string]string) map[string]string {
	mine := map[string]string{}
	maps.Copy(mine, tags)
	return mine
}

// completePeer sets the empty fields of one side of a peering. If the VPC is in the Config, its CIDRs replace missing
// CIDRs.
func (c Config) completePeer(p PeerVPC) PeerVPC {
	p.Account, p.Region = cmp.Or(p.Account, c.Account), cmp.Or(p.Region, c.Region)
	if i := c.vpcIndex(p.ID); i >= 0 && p.CIDRs == nil && p.IPv6CIDRs == nil {
		p.CIDRs, p.IPv6CIDRs = c.VPCs[i].CIDRs, c.VPCs[i].IPv6CIDRs
	}
	return p
}

func (c Config) vpcIndex(id string) int {
	return slices.IndexFunc(c.VPCs, func(v VPC) bool { return v.ID == id })
}

func (c Config) validate() error {
	var wrong []error
	mistake := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if len(c.VPCs) == 0 {
		mistake("no VPC")
	}
	ids := map[string]bool{}
	id := func(id, prefix string) {
		if !strings.HasPrefix(id, prefix) || ids[id] {
			mistake("%q: an ID that begins with %q and is there once is needed", id, prefix)
		}
		ids[id] = true
	}
	for _, v := range c.VPCs {
		id(v.ID, "vpc-")
		c.validateVPC(v, mistake)
	}
	for i, sub := range c.Subnets {
		id(sub.ID, "subnet-")
		c.validateSubnet(i, mistake)
	}
	for _, p := range c.Peerings {
		id(p.ID, "pcx-")
		c.validatePeering(p, mistake)
	}
	for _, t := range c.InstanceTypes {
		if t.Name == "" || t.ENIs < 1 || t.IPv4PerENI < 1 {
			mistake("instance type %q: name, ENIs and IPv4PerENI are needed", t.Name)
		}
	}
	for _, name := range c.Denied {
		if _, ok := actions[name]; !ok {
			mistake("denied: no action %q", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Buckets)) {
		if b, ok := c.Buckets[name], isBucket(name); !ok || b.Size < 1 || b.Refill < 0 {
			mistake("bucket %q: the name of an action, a size and a refill rate are needed", name)
		}
	}
	if c.Lag.Most < 0 || c.Lag.Back < 0 {
		mistake("lag: less than none")
	}
	return errors.Join(wrong...)
}

func (c Config) validateVPC(v VPC, mistake func(string, ...any)) {
	if len(v.CIDRs) == 0 {
		mistake("%s: no CIDR", v.ID)
	}
	for _, b := range v.CIDRs {
		if !isIPv4Block(b) {
			mistake("%s: %s: %s", v.ID, b, needBlock)
		}
	}
	for _, b := range v.IPv6CIDRs {
		if !isIPv6Block(b, 60) {
			mistake("%s: %s: an IPv6 block of /44, /48 and so on to /60 is needed", v.ID, b)
		}
	}
	for _, b := range v.FormerCIDRs {
		if !isIPv4Block(b) && !isIPv6Block(b, 60) {
			mistake("%s: %s: %s", v.ID, b, needBlock)
		}
	}
}

func (c Config) validateSubnet(i int, mistake func(string, ...any)) {
	sub := c.Subnets[i]
	switch {
	case !sub.CIDR.IsValid() && !sub.IPv6CIDR.IsValid():
		mistake("%s: no CIDR", sub.ID)
	case sub.CIDR.IsValid() && !isIPv4Block(sub.CIDR):
		mistake("%s: %s: %s", sub.ID, sub.CIDR, needBlock)
	case sub.IPv6CIDR.IsValid() && !isIPv6Block(sub.IPv6CIDR, 64):
		mistake("%s: %s: an IPv6 block of /44, /48 and so on to /64 is needed", sub.ID, sub.IPv6CIDR)
	case sub.AssignIPv6 && !sub.IPv6CIDR.IsValid():
		mistake("%s: AssignIPv6 without IPv6CIDR", sub.ID)
	}
	if !strings.HasPrefix(sub.Zone, c.Region) || sub.Zone == c.Region {
		mistake("%s: %q is no zone of %s", sub.ID, sub.Zone, c.Region)
	}
	v := c.vpcIndex(sub.VPC)
	if v < 0 {
		mistake("%s: no VPC %q", sub.ID, sub.VPC)
		return
	}
	blocks := slices.Concat(c.VPCs[v].CIDRs, c.VPCs[v].IPv6CIDRs)
	for _, cidr := range sub.cidrs() {
		if !slices.ContainsFunc(blocks, func(b netip.Prefix) bool {
			return b.Bits() <= cidr.Bits() && b.Contains(cidr.Addr())
		}) {
			mistake("%s: %s is not in %s", sub.ID, cidr, sub.VPC)
		}
		for _, other := range c.Subnets[:i] {
			if other.VPC == sub.VPC && slices.ContainsFunc(other.cidrs(), cidr.Overlaps) {
				mistake("%s: %s overlaps %s", sub.ID, cidr, other.ID)
			}
		}
	}
}

// cidrs returns the blocks of the subnet, one for each of its families.
func (s Subnet) cidrs() []netip.Prefix {
	return slices.DeleteFunc([]netip.Prefix{s.CIDR, s.IPv6CIDR}, func(b netip.Prefix) bool { return !b.IsValid() })
}

func (c Config) validatePeering(p Peering, mistake func(string, ...any)) {
	if c.vpcIndex(p.Requester.ID) < 0 && c.vpcIndex(p.Accepter.ID) < 0 {
		mistake("%s: neither side is a VPC of the Config", p.ID)
	}
	if _, ok := peeringStatus[p.Status]; !ok {
		mistake("%s: no status %q", p.ID, p.Status)
	}
	for _, side := range []PeerVPC{p.Requester, p.Accepter} {
		if len(side.CIDRs) == 0 && p.Status == "active" {
			mistake("%s: %s has no CIDR", p.ID, side.ID)
		}
	}
}

const needBlock = "an IPv4 block between /16 and /28 is needed"

// isIPv4Block reports whether b can be a block of a VPC or of a subnet (VPC Guide: "VPC CIDR blocks", "Subnet CIDR
// blocks").
func isIPv4Block(b netip.Prefix) bool {
	return b.IsValid() && b.Addr().Is4() && b == b.Masked() && b.Bits() >= 16 && b.Bits() <= 28
}

// isIPv6Block reports whether b can be an IPv6 block of a VPC or of a subnet. The longest prefix length is 60 for a
// VPC, and 64 for a subnet (VPC Guide: "VPC CIDR blocks", "Subnet CIDR blocks": "in increments of /4").
func isIPv6Block(b netip.Prefix, longest int) bool {
	return b.IsValid() && isIPv6(b.Addr()) && b == b.Masked() && b.Bits() >= 44 && b.Bits() <= longest &&
		b.Bits()%4 == 0
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() && a.Zone() == "" }
