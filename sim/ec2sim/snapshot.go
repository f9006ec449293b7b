// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import "net/netip"

// An ENI is a copy of a network interface's state.
type ENI struct {
	ID              string
	MAC             string
	Description     string
	Subnet          string
	CIDR            netip.Prefix // the subnet's IPv4 block; zero if the subnet has none
	IPv6CIDR        netip.Prefix // the subnet's IPv6 block; zero if the subnet has none
	VPC             string
	Zone            string
	SecurityGroups  []string
	Addrs           []netip.Addr   // IPv4, the primary address first; empty in a subnet without IPv4
	Prefixes        []netip.Prefix // delegated IPv4 prefixes
	IPv6Addrs       []netip.Addr
	IPv6Prefixes    []netip.Prefix // delegated IPv6 prefixes
	PublicIP        netip.Addr     // EC2 translates it to the primary address; zero if there is none
	SourceDestCheck bool
	EFAOnly         bool // an EFA-only ENI has no address
	Tracking        Tracking
	Tags            map[string]string

	Status string // "available" or "in-use"

	// The attachment. If the ENI is not attached, these fields are zero.
	Attachment          string
	AttachmentStatus    string // "attaching", "attached" or "detaching"
	Instance            string
	Index               int // the device index, within the card
	Card                int // the network card's index
	Boot                bool
	DeleteOnTermination bool
}

// A Change tells a listener that a network interface of an instance has changed.
type Change struct {
	Kind     ChangeKind
	Instance string // the instance that has, or had, the ENI
	ENI      ENI    // the state after the change, or for Detached, before the change
}

// A ChangeKind is the kind of a Change.
type ChangeKind string

// The kinds of changes.
const (
	Attached ChangeKind = "attached" // the ENI is attached to the instance now
	Detached ChangeKind = "detached" // the ENI is no longer attached to the instance
	// The ENI's addresses, prefixes, security groups or source/destination check have changed.
	Addressed ChangeKind = "addressed"
)

// A Call is a request that EC2 has received.
type Call struct {
	Action string
	Params map[string]string // the request's parameters, without Action and Version
	Code   string            // the error code of the answer; empty if the call succeeded
	Lost   bool              // the caller got no answer: see Sim.Lose and Sim.Script
}
