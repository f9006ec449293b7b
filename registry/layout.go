// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// This is the layout on disk. The lines for a type must agree with its struct tags; a test
// compares them. A new field needs its tag and a line here: Field or List, or Optional or
// OptionalList if it has omitempty or omitzero. A new map of State also needs a line in
// newState. A file without the field is read as the zero value.

func (s *State) describe(c *codec.Codec, version *int) {
	c.ObjectAndRest(func() {
		codec.Field(c, "schema_version", version, codec.Number)
		indexed.Entered(c, "ips", &s.Free, cooling)
		indexed.Entered(c, "leases", &s.Leases, (*Lease).describe)
		indexed.KeptTable(c, "enis", &s.ENIs, &s.keptENIs, keepingENI, (*ENI).describe)
		codec.Table(c, "vpcs", &s.VPCs, codec.ByName, (*VPC).describe)
		codec.OptionalTable(c, "intents", &s.Intents, codec.ByName, (*Intent).describe)
		codec.OptionalTable(c, "gone", &s.Gone, codec.ByAddr, codec.Time)
		codec.OptionalTable(c, "wishes", &s.Waiters, codec.ByName, (*Waiter).describe)
		codec.OptionalTable(c, "gaveUp", &s.GaveUp, codec.ByName, (*Waiter).describe)
		codec.OptionalTable(c, "failures", &s.Failures, codec.ByName, (*Failure).describe)
		codec.OptionalTable(c, "owners", &s.Owners, codec.ByAddr, (*Pod).describe)
		codec.OptionalTable(c, "warm", &s.Warm, codec.ByName, (*Warm).Describe)
		codec.OptionalList(c, "on_request", &s.OnRequest, (*OnRequest).describe)
		codec.OptionalTable(c, "not_before", &s.NotBefore, codec.ByName, codec.Time)
		codec.OptionalTable(c, "refusals", &s.Refusals, codec.ByName, (*Refusal).describe)
		codec.Optional(c, "rebuilt", &s.Rebuilt, (*Rebuilt).describe)
		codec.Field(c, "instance", &s.Instance, (*Instance).describe)
		codec.Optional(c, "leaseLog", &s.Log, (*Logging).describe)
		codec.OptionalList(c, "logLines", &s.LogLines, (*Line).describe)
		codec.Optional(c, "booted", &s.booted, codec.Time)
		codec.Optional(c, "written", new(string), codec.Text) // encode writes it, and parse has checked it
		codec.Optional(c, "sum", new(string), codec.Text)     // earlier releases wrote it
	}, s.unknown)
}

// cooling is an entry of the original's file. The zero time means that the address is
// reusable at once.
func cooling(since *time.Time, c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "released_on", since, codec.Time)
	})
}

// describe has the first members of a lease.
func (k *Key) describe(c *codec.Codec) {
	codec.Field(c, "network", &k.Network, codec.Text)
	codec.Field(c, "containerID", &k.ContainerID, codec.Text)
	codec.Field(c, "ifname", &k.IfName, codec.Text)
}

func (l *Lease) describe(c *codec.Codec) {
	c.Object(func() {
		l.Key.describe(c)
		codec.Optional(c, "podNamespace", &l.PodNamespace, codec.Text)
		codec.Optional(c, "podName", &l.PodName, codec.Text)
		codec.Optional(c, "netns", &l.NetNS, codec.Text)
		codec.Field(c, "eni", &l.ENI, codec.Text)
		codec.Optional(c, "nic", &l.NIC, codec.Number)
		codec.Optional(c, "asked", &l.Asked, codec.Flag)
		codec.Optional(c, "exclusive", &l.Exclusive, codec.Flag)
		codec.Optional(c, "bound", &l.Bound, codec.Flag)
		codec.Field(c, "since", &l.Since, codec.Time)
		codec.Optional(c, "missingSince", &l.MissingSince, codec.Time)
	})
}

func (p *Pod) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "network", &p.Network, codec.Text)
		codec.Field(c, "podNamespace", &p.Namespace, codec.Text)
		codec.Field(c, "podName", &p.Name, codec.Text)
	})
}

func (e *ENI) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "mac", &e.MAC, codec.Text)
		codec.Optional(c, "link", &e.Link, codec.Text)
		codec.Field(c, "index", &e.Index, codec.Number)
		codec.Optional(c, "card", &e.Card, codec.Number)
		codec.Optional(c, "boot", &e.Boot, codec.Flag)
		codec.Field(c, "subnet", &e.Subnet, codec.Text)
		codec.Optional(c, "cidr", &e.CIDR, codec.Prefix)
		codec.Optional(c, "cidr6", &e.CIDR6, codec.Prefix)
		codec.Field(c, "vpc", &e.VPC, codec.Text)
		indexed.Addrs(c, "addrs", &e.Addrs)
		codec.OptionalList(c, "prefixes", &e.Prefixes, (*Prefix).describe)
		codec.Optional(c, "pool", &e.Pool, codec.Text)
		codec.Optional(c, "serving", &e.Serving, codec.Flag)
		codec.Optional(c, "passed", &e.Passed, codec.Flag)
		codec.Optional(c, "foreign", &e.Foreign, codec.Flag)
		codec.Optional(c, "tagsUnknown", &e.TagsUnknown, codec.Text)
		codec.Optional(c, "managed", &e.Managed, codec.Flag)
		codec.Optional(c, "draining", &e.Draining, codec.Flag)
		codec.Optional(c, "detaching", &e.Detaching, codec.Time)
		codec.Optional(c, "keep", &e.Keep, codec.Flag)
		codec.Field(c, "read", &e.Read, codec.Time)
		codec.Optional(c, "grown", &e.Grown, codec.Time)
		codec.Optional(c, "missed", &e.Missed, codec.Time)
		codec.Optional(c, "detached", &e.Detached, codec.Flag)
		codec.Optional(c, "provisioning", &e.Provisioning, codec.Flag)
		codec.Optional(c, "onRequest", &e.OnRequest, codec.Flag)
		codec.OptionalList(c, "groups", &e.Groups, codec.Text)
		codec.OptionalTable(c, "tags", &e.Tags, codec.ByName, codec.Text)
		codec.OptionalTable(c, "subnetTags", &e.SubnetTags, codec.ByName, codec.Text)
		codec.OptionalTable(c, "settings", &e.Settings, codec.ByName, codec.Text)
	})
}

func (p *Prefix) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "cidr", &p.CIDR, codec.Prefix)
		codec.Field(c, "since", &p.Since, codec.Time)
	})
}

func (r *OnRequest) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "network", &r.Network, codec.Text)
		codec.OptionalTable(c, "tags", &r.Tags, codec.ByName, codec.Text)
	})
}

func (v *VPC) describe(c *codec.Codec) {
	c.Object(func() {
		codec.List(c, "cidrs", &v.CIDRs, codec.Prefix)
		codec.OptionalList(c, "cidrs6", &v.CIDRs6, codec.Prefix)
		codec.OptionalList(c, "peers", &v.Peers, codec.Prefix)
		codec.Optional(c, "peersRead", &v.PeersRead, codec.Time)
	})
}

func (i *Intent) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "action", &i.Action, codec.Text)
		codec.Optional(c, "eni", &i.ENI, codec.Text)
		codec.Field(c, "since", &i.Since, codec.Time)
		codec.Optional(c, "subnet", &i.Subnet, codec.Text)
		codec.OptionalList(c, "securityGroups", &i.SecurityGroups, codec.Text)
		codec.OptionalTable(c, "tags", &i.Tags, codec.ByName, codec.Text)
		codec.Optional(c, "tracking", &i.Tracking, (*Tracking).Describe)
		codec.Optional(c, "secondary", &i.Secondary, codec.Number)
		codec.Optional(c, "prefixes", &i.Prefixes, codec.Number)
		codec.Optional(c, "ipv6", &i.IPv6, codec.Number)
		codec.Optional(c, "ipv6Prefixes", &i.IPv6Prefixes, codec.Number)
		codec.Optional(c, "attachment", &i.Attachment, codec.Text)
		codec.Optional(c, "addr", &i.Addr, codec.Addr)
		codec.Optional(c, "pod", &i.Pod, (*Pod).describe)
	})
}

func (r *Rebuilt) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "since", &r.Since, codec.Time)
		codec.Optional(c, "compared", &r.Compared, codec.Flag)
		codec.Optional(c, "unconfirmed", &r.Unconfirmed, codec.Flag)
	})
}

func (w *Waiter) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "pool", &w.Pool, codec.Text)
		codec.Field(c, "since", &w.Since, codec.Time)
		codec.Field(c, "until", &w.Until, codec.Time)
	})
}

func (f *Failure) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "text", &f.Text, codec.Text)
		codec.Optional(c, "hint", &f.Hint, codec.Text)
		codec.Optional(c, "began", &f.Began, codec.Time)
		codec.Field(c, "since", &f.Since, codec.Time)
		codec.Optional(c, "until", &f.Until, codec.Time)
	})
}

func (r *Refusal) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "code", &r.Code, codec.Text)
		codec.Optional(c, "message", &r.Message, codec.Text)
		codec.Optional(c, "request", &r.Request, codec.Text)
		codec.Field(c, "since", &r.Since, codec.Time)
		codec.Field(c, "until", &r.Until, codec.Time)
	})
}

// Describe repeats the struct tags. It is exported because a Warm is part of
// configurations, too.
func (w *Warm) Describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "min", &w.Min, codec.Number)
		codec.Field(c, "max", &w.Max, codec.Number)
	})
}

// Describe is exported for configurations, as that of a Warm.
func (t *Tracking) Describe(c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "tcpEstablishedTimeout", &t.TCPEstablished, codec.Number)
		codec.Field(c, "udpStreamTimeout", &t.UDPStream, codec.Number)
		codec.Field(c, "udpTimeout", &t.UDP, codec.Number)
	})
}

func (i *Instance) describe(c *codec.Codec) {
	c.Object(func() {
		codec.Optional(c, "id", &i.ID, codec.Text)
		codec.Optional(c, "type", &i.Type, codec.Text)
		codec.Optional(c, "zone", &i.Zone, codec.Text)
		codec.Optional(c, "boot", &i.Boot, codec.Text)
		codec.Optional(c, "enis", &i.ENIs, codec.Number)
		codec.Optional(c, "ipv4PerENI", &i.IPv4PerENI, codec.Number)
		codec.Optional(c, "ipv6PerENI", &i.IPv6PerENI, codec.Number)
		codec.Optional(c, "noPrefixes", &i.NoPrefixes, codec.Flag)
		codec.OptionalList(c, "cards", &i.Cards, codec.Number)
		codec.Optional(c, "fullUntil", &i.FullUntil, codec.Time)
		codec.Optional(c, "fullWith", &i.FullWith, codec.Number)
		codec.Optional(c, "fullRead", &i.FullRead, codec.Time)
		codec.Optional(c, "quotaUntil", &i.QuotaUntil, codec.Time)
	})
}
