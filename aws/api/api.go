// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package api is the table of the actions of EC2 that this project calls. It has what a caller, a policy and a
// simulator must know of each.
package api

import (
	"maps"
	"slices"
)

// Traits are what is true of an action.
type Traits uint8

const (
	// Node is for actions that programs on a node call. Only the acceptance test calls the others.
	Node Traits = 1 << iota
	// Describes is for actions that change nothing in EC2.
	Describes
	// Makes is for actions that make something, which may have tags from the beginning.
	Makes
	// OnENI is for actions about an ENI that exists. A policy can bind these actions to the tags of that ENI.
	OnENI
	// Once is for actions without a client token whose repetition has another effect. A request whose answer is lost is
	// not sent again.
	Once
	// NoDryRun is for actions without the parameter DryRun. "Most" have it (API reference, "Common query parameters").
	// The actions in this list do not have it in the API model of the SDKs.
	NoDryRun
)

// A Bucket limits how often an action may be called. Each request takes a token, even if it fails, and each second adds
// some.
type Bucket struct {
	Size   int // maximum and initial number of tokens
	Refill int // tokens per second
}

// An Action is a row of the table.
type Action struct {
	Traits
	Bucket // of the account in a region, shared by all callers
}

// EC2's limits (API: "Request throttling for the Amazon EC2 API", the tables of "Request token limits").
var (
	reading  = Bucket{100, 20}
	changing = Bucket{50, 5}
	often    = Bucket{100, 5}
)

// table has each action by its name in the API.
var table = map[string]Action{
	"AssignIpv6Addresses":           {Node | OnENI | Once | NoDryRun, often},
	"AssignPrivateIpAddresses":      {Node | OnENI | Once | NoDryRun, often},
	"AttachNetworkInterface":        {Node | OnENI | Once, changing},
	"AuthorizeSecurityGroupIngress": {0, changing},
	"CreateNetworkInterface":        {Node | Makes, often},
	"CreateSecurityGroup":           {Makes, changing},
	// no call of its own: creations with tags need its permission
	"CreateTags":                      {0, Bucket{100, 10}},
	"DeleteKeyPair":                   {0, changing},
	"DeleteNetworkInterface":          {Node | OnENI, often},
	"DeleteSecurityGroup":             {0, changing},
	"DescribeImages":                  {Describes, reading},
	"DescribeInstanceTypeOfferings":   {Describes, reading},
	"DescribeInstanceTypes":           {Node | Describes, reading},
	"DescribeInstances":               {Node | Describes, reading},
	"DescribeKeyPairs":                {Describes, reading},
	"DescribeNetworkInterfaces":       {Node | Describes, reading},
	"DescribeSecurityGroups":          {Describes, reading},
	"DescribeSubnets":                 {Node | Describes, reading},
	"DescribeVpcPeeringConnections":   {Node | Describes, reading},
	"DescribeVpcs":                    {Node | Describes, reading},
	"DetachNetworkInterface":          {Node | OnENI, changing},
	"ImportKeyPair":                   {Makes, changing},
	"ModifyNetworkInterfaceAttribute": {Node | OnENI, often},
	"RunInstances":                    {Makes, changing},
	"TerminateInstances":              {0, changing},
	"UnassignIpv6Addresses":           {Node | OnENI | NoDryRun, changing},
	"UnassignPrivateIpAddresses":      {Node | OnENI | NoDryRun, changing},
}

// Is reports whether an action has all of the traits. An action that the table does not have has none.
func Is(name string, traits Traits) bool { return table[name].Traits&traits == traits }

// Changes reports whether an action may change something in EC2. An action that the table does not have may.
func Changes(name string) bool { return !Is(name, Describes) }

// BucketOf returns EC2's default limit of an action.
func BucketOf(name string) Bucket { return table[name].Bucket }

// Names returns the actions that have all of the traits, in their order.
func Names(traits Traits) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range maps.Keys(table) {
			if Is(name, traits) && !yield(name) {
				return
			}
		}
	})
}
