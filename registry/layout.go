// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry/indexed"
)

// This Go file defines the layout of the registry's file. To add a field to State, add a line to the method describe.
// If the field is a map, also add a line to newState. To add a field to another type, write the field's struct tag, and
// run go generate. When a process reads a registry's file without the new field, the field gets its zero value.

func (s *State) describe(c *codec.Codec, version *int) {
	c.ObjectAndRest(func() {
		codec.Field(c, "schema_version", version, codec.Number)
		indexed.EntriesTable(c, "ips", &s.Free, describeCooling)
		indexed.EntriesTable(c, "leases", &s.Leases, (*Lease).describe)
		indexed.KeptTable(c, "enis", &s.ENIs, &s.keptENIs, eniFuncs, (*ENI).describe)
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
		codec.Optional(c, "booted", &s.bootTime, codec.Time)
		codec.Optional(c, "written", new(string), codec.Text) // sealText writes this member, and isSealed checks it
		codec.Optional(c, "sum", new(string), codec.Text)     // earlier releases wrote this member
	}, s.unknownFields)
}

// describeCooling describes the value of an entry of State.Free, in the format of the original plugin's file. If the
// time is zero, pods can use the address again at once.
func describeCooling(since *time.Time, c *codec.Codec) {
	c.Object(func() {
		codec.Field(c, "released_on", since, codec.Time)
	})
}

// describeAttachment describes the members of an attachment, which is a type of the CNI library.
func describeAttachment(a *Attachment, c *codec.Codec) {
	codec.Field(c, "containerID", &a.ContainerID, codec.Text)
	codec.Field(c, "ifname", &a.IfName, codec.Text)
}
