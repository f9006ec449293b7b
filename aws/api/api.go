// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package api is the table of the EC2 actions that this project calls. For each action, the table has the properties
// that callers, IAM policies and the simulator of EC2 depend on.
package api

import (
	"maps"
	"slices"
)

// Traits is a set of yes-or-no properties of an action. Each property is one bit.
type Traits uint8

const (
	// Node is the trait of the actions that the programs of this suite call on a node. Only the acceptance test calls
	// the other actions.
	Node Traits = 1 << iota
	// Describes is the trait of the actions that change nothing in EC2.
	Describes
	// Makes is the trait of the actions that create an object. Their requests may contain tags for the new object.
	Makes
	// OnENI is the trait of the actions on an existing ENI. An IAM policy can limit these actions to ENIs with certain
	// tags.
	OnENI
	// Once is the trait of the actions that assign addresses or attach an ENI. They have no client token, so EC2 could
	// carry out a repeated request twice. If the answer to a request is lost, package aws does not repeat the request.
	Once
	// NoDryRun is the trait of the actions that have no parameter DryRun in the API model of the SDKs. The API
	// reference says only that "most" actions have this parameter ("Common query parameters").
	NoDryRun
)

// A Bucket is a token bucket. EC2 uses the bucket to limit the rate of an action's requests. Each request takes a
// token, even if the request fails. Each second, EC2 adds Refill tokens, until the bucket has Size tokens.
type Bucket struct {
	Size   int // maximum and initial number of tokens
	Refill int // tokens per second
}

// An Action has the properties of one action of EC2.
type Action struct {
	Traits
	Bucket // in each region, all callers of an account share one Bucket for the action
}

// The limits that EC2 documents for its actions (EC2 developer guide, "Request throttling for the Amazon EC2 API", the
// tables of "Request token limits").
var (
	reading  = Bucket{100, 20}
	changing = Bucket{50, 5}
	often    = Bucket{100, 5}
)

var table = map[string]Action{
	"AssignIpv6Addresses":           {Node | OnENI | Once | NoDryRun, often},
	"AssignPrivateIpAddresses":      {Node | OnENI | Once | NoDryRun, often},
	"AttachNetworkInterface":        {Node | OnENI | Once, changing},
	"AuthorizeSecurityGroupIngress": {0, changing},
	"CreateNetworkInterface":        {Node | Makes, often},
	"CreateSecurityGroup":           {Makes, changing},
	// no program calls CreateTags, but an action that creates an object with tags needs the permission for CreateTags
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

// Is reports whether the action with this name has all of the given traits. An action that is not in the table has no
// traits.
func Is(name string, traits Traits) bool { return table[name].Traits&traits == traits }

// Changes reports whether an action may change something in EC2. For an action that is not in the table, Changes
// returns true.
func Changes(name string) bool { return !Is(name, Describes) }

// BucketOf returns EC2's default Bucket for an action. AWS may have changed the Bucket of an account.
func BucketOf(name string) Bucket { return table[name].Bucket }

// Names returns the names of the actions that have all of the traits, sorted.
func Names(traits Traits) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range maps.Keys(table) {
			if Is(name, traits) && !yield(name) {
				return
			}
		}
	})
}
