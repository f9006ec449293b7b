// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import "time"

// This is the layout on disk. What is here for a type is what its struct tags say,
// which a test compares; so a new field needs its tag and a line here: field or list, or
// optional or optionalList if it has omitempty or omitzero. A new map of State needs a
// line in newState too. Who reads a file in which there is none finds the zero value.

func (c *codec) state(s *State, version *int) {
	field(c, "schema_version", version, number)
	table(c, "ips", s.Free, byAddr, (*codec).free)
	table(c, "leases", s.Leases, byAddr, (*codec).lease)
	table(c, "enis", s.ENIs, byName, (*codec).eni)
	table(c, "vpcs", s.VPCs, byName, (*codec).vpc)
	optionalTable(c, "intents", s.Intents, byName, (*codec).intent)
	optionalTable(c, "gone", s.Gone, byAddr, moment)
	optionalTable(c, "wishes", s.Wishes, byName, (*codec).wish)
	optionalTable(c, "failures", s.Failures, byName, (*codec).failure)
	optionalTable(c, "warm", s.Warm, byName, (*codec).warm)
	optionalTable(c, "not_before", s.NotBefore, byName, moment)
	field(c, "instance", &s.Instance, (*codec).instance)
}

// free is an address of the original's: the zero time means reusable at once.
func (c *codec) free(since *time.Time) {
	c.object(func() {
		field(c, "released_on", since, moment)
	}, nil)
}

func (c *codec) lease(l *Lease) {
	c.object(func() {
		field(c, "network", &l.Network, text)
		field(c, "containerID", &l.ContainerID, text)
		field(c, "ifname", &l.IfName, text)
		optional(c, "podNamespace", &l.PodNamespace, text)
		optional(c, "podName", &l.PodName, text)
		optional(c, "netns", &l.NetNS, text)
		field(c, "eni", &l.ENI, text)
		optional(c, "bound", &l.Bound, flag)
		field(c, "since", &l.Since, moment)
		optional(c, "missingSince", &l.MissingSince, moment)
	}, nil)
}

func (c *codec) eni(e *ENI) {
	c.object(func() {
		field(c, "mac", &e.MAC, text)
		optional(c, "link", &e.Link, text)
		field(c, "index", &e.Index, number)
		optional(c, "card", &e.Card, number)
		field(c, "subnet", &e.Subnet, text)
		optional(c, "cidr", &e.CIDR, prefix)
		optional(c, "cidr6", &e.CIDR6, prefix)
		field(c, "vpc", &e.VPC, text)
		list(c, "addrs", &e.Addrs, address)
		optionalList(c, "prefixes", &e.Prefixes, (*codec).prefix)
		optional(c, "pool", &e.Pool, text)
		optional(c, "serving", &e.Serving, flag)
		optional(c, "foreign", &e.Foreign, flag)
		optional(c, "managed", &e.Managed, flag)
		optional(c, "draining", &e.Draining, flag)
		optional(c, "keep", &e.Keep, flag)
		field(c, "read", &e.Read, moment)
		optional(c, "grown", &e.Grown, moment)
	}, nil)
}

func (c *codec) prefix(p *Prefix) {
	c.object(func() {
		field(c, "cidr", &p.CIDR, prefix)
		field(c, "since", &p.Since, moment)
	}, nil)
}

func (c *codec) vpc(v *VPC) {
	c.object(func() {
		list(c, "cidrs", &v.CIDRs, prefix)
		optionalList(c, "cidrs6", &v.CIDRs6, prefix)
		optionalList(c, "peers", &v.Peers, prefix)
		optional(c, "peersRead", &v.PeersRead, moment)
	}, nil)
}

func (c *codec) intent(i *Intent) {
	c.object(func() {
		field(c, "action", &i.Action, text)
		optional(c, "eni", &i.ENI, text)
		field(c, "since", &i.Since, moment)
	}, nil)
}

func (c *codec) wish(w *Wish) {
	c.object(func() {
		optional(c, "pool", &w.Pool, text)
		field(c, "since", &w.Since, moment)
		field(c, "until", &w.Until, moment)
	}, nil)
}

func (c *codec) failure(f *Failure) {
	c.object(func() {
		field(c, "text", &f.Text, text)
		optional(c, "hint", &f.Hint, text)
		optional(c, "began", &f.Began, moment)
		field(c, "since", &f.Since, moment)
	}, nil)
}

func (c *codec) warm(w *Warm) {
	c.object(func() {
		field(c, "min", &w.Min, number)
		field(c, "max", &w.Max, number)
	}, nil)
}

func (c *codec) instance(i *Instance) {
	c.object(func() {
		optional(c, "id", &i.ID, text)
		optional(c, "type", &i.Type, text)
		optional(c, "zone", &i.Zone, text)
		optional(c, "enis", &i.ENIs, number)
		optional(c, "ipv4PerENI", &i.IPv4PerENI, number)
		optional(c, "ipv6PerENI", &i.IPv6PerENI, number)
		optionalList(c, "cards", &i.Cards, number)
		optional(c, "fullUntil", &i.FullUntil, moment)
	}, nil)
}
