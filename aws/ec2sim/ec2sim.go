// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ec2sim is a simulator of the network side of Amazon EC2: it answers the EC2 query protocol and, for each
// instance, the instance metadata service (IMDSv2), from one VPC world in memory. It is for testing programs that manage
// network interfaces and private addresses: they run unchanged, SDK and all, with two environment variables
// (AWS_ENDPOINT_URL_EC2 and AWS_EC2_METADATA_SERVICE_ENDPOINT) that point at the two handlers of this package.
//
//	sim, err := ec2sim.New(ec2sim.Config{VPCs: ..., Subnets: ...})
//	node, err := sim.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-a"})
//	ec2 := httptest.NewServer(sim)              // AWS_ENDPOINT_URL_EC2
//	imds := httptest.NewServer(node.Metadata()) // AWS_EC2_METADATA_SERVICE_ENDPOINT
//
// # Rules
//
// It refuses what EC2 refuses, with EC2's codes and statuses. Every rule in the code names the page of the EC2 API
// reference ("API:"), of the EC2 user guide ("Guide:") or of the VPC user guide ("VPC Guide:") that it comes from; where
// EC2 only shows it by doing it, the comment says "in practice". In short:
//
//   - An instance type limits the ENIs of an instance and of a network card, and the addresses and prefixes of an ENI.
//   - A subnet has IPv4, IPv6 or both. It keeps its first four addresses and its last; the others go to one ENI each, and
//     a prefix needs an aligned free block (/28, /80), so that a subnet can have room for addresses and none for prefixes.
//   - An ENI has one attachment at most, in its own zone, at a device index that is free on its network card; each card has
//     indices of its own. The boot ENI cannot be detached, an attached ENI cannot be deleted, a primary address cannot be
//     taken away.
//   - A client token makes one ENI, however often it is sent.
//
// # Faults
//
// What EC2 and the metadata service do to a program on a bad day happens here when it is asked for, and never otherwise:
//
//   - Attaching, detaching and the way into the metadata take as long as the Config says.
//   - Requests run into EC2's token buckets ([Config.Throttle]), or fail or dawdle as told ([Sim.Fail], [Sim.Delay]).
//   - A call is carried out, and its answer is lost ([Sim.Lose]).
//   - Describes lag behind what was done, and new ENIs are not found at once ([Config.Lag]).
//   - The metadata service lies ([Instance.Lie]), most of all after a restart ([Instance.Reboot]).
//
// Which free address EC2 chooses is not documented. The simulator goes round the subnet, so that a test is the same every
// time and what was freed is given out again as late as possible. IDs and MACs are numbered for the same reason.
//
// # Limits
//
// It is not a mock: no answer is canned, and all of them follow from one state. It moves no packets (package vpcsim does,
// as a listener of [Sim.OnChange]). It checks neither signatures nor policies, apart from the actions of [Config.Denied].
// There is no Elastic IP address, no primary IPv6 address, no interface type but the plain one and the EFA-only one that an
// instance is launched with, and no stopping of instances. Times are taken from package time alone, so that a simulator inside a testing/synctest bubble runs on the
// bubble's clock. Where EC2's documentation leaves a rule open, the comment at the rule says that it is a guess.
//
// The invariant: an address of a subnet belongs to at most one network interface, and a subnet's free count is exactly
// the number of addresses that nobody has.
package ec2sim

import (
	"net/netip"
	"time"
)

// A Config describes the world before the first call.
type Config struct {
	Region         string         // "us-east-1" if empty
	Account        string         // twelve digits; "123456789012", the account of AWS's own examples, if empty
	VPCs           []VPC          // at least one
	Subnets        []Subnet       // of those VPCs
	Peerings       []Peering      // between one of those VPCs and any other
	SecurityGroups []string       // the groups that exist; if empty, every group does
	InstanceTypes  []InstanceType // known beside the built-in ones, or instead of those of the same name

	Denied []string // actions that answer UnauthorizedOperation, as if no IAM policy allowed them

	Throttle bool              // requests take tokens, as in EC2; else there is no limit to them
	Buckets  map[string]Bucket // the buckets of actions whose quotas are not EC2's own (with Throttle)

	Lag       Lag           // how far EC2 is behind itself
	TokenLife time.Duration // how long a client token is remembered when its ENI is deleted; 0: for ever

	AttachDelay   time.Duration // how long an attachment stays "attaching" after AttachNetworkInterface has answered
	DetachDelay   time.Duration // how long it stays "detaching"
	MetadataDelay time.Duration // how long a change takes to show in the instance's metadata
}

// A VPC is a virtual private cloud.
type VPC struct {
	ID          string
	CIDRs       []netip.Prefix // IPv4, the primary block first; a VPC always has one
	IPv6CIDRs   []netip.Prefix // usually one /56, or none
	FormerCIDRs []netip.Prefix // blocks of either family that were taken away: DescribeVpcs still lists them, as disassociated
	Default     bool
	Tags        map[string]string
}

// A Subnet is a range of a VPC's addresses in one availability zone.
type Subnet struct {
	ID          string
	VPC         string
	Zone        string       // for example "us-east-1a"
	CIDR        netip.Prefix // zero: no IPv4
	IPv6CIDR    netip.Prefix // usually a /64; zero: no IPv6
	MapPublicIP bool         // instances launched here get a public address for the primary address of their boot ENI
	AssignIPv6  bool         // ENIs created here get an IPv6 address unasked (API: Subnet, AssignIpv6AddressOnCreation)
	Default     bool         // the default subnet of its zone
	Tags        map[string]string
}

// A Peering is a connection between two VPCs, of which at least one is in the Config.
type Peering struct {
	ID        string
	Requester PeerVPC
	Accepter  PeerVPC
	Status    string // "active" if empty; or as in API: VpcPeeringConnectionStateReason
	Tags      map[string]string
}

// A PeerVPC is one side of a Peering. For a VPC of the Config its ID is enough.
type PeerVPC struct {
	ID        string
	CIDRs     []netip.Prefix // IPv4
	IPv6CIDRs []netip.Prefix
	Account   string // the Config's if empty
	Region    string // the Config's if empty
}

// An InstanceType holds the network limits of an instance type (Guide: "Maximum IP addresses per network interface").
type InstanceType struct {
	Name       string
	ENIs       int   // network interfaces at most, the boot ENI included
	IPv4PerENI int   // private IPv4 addresses and prefixes of one ENI, the primary address included
	IPv6PerENI int   // IPv6 addresses and prefixes of one ENI; 0: the type has no IPv6
	Cards      []int // the network interfaces of each network card; nil for one card that takes them all
	Xen        bool  // not a Nitro type: no delegated prefixes (Guide: "Prefix delegation ...")
}

// RunInstance says how to launch an instance (API: RunInstances, as far as its first network interface goes).
type RunInstance struct {
	Type           string
	Subnet         string
	SecurityGroups []string
	PrivateIP      netip.Addr // the primary address of the boot ENI; zero: EC2's choice
	Secondary      int        // how many secondary addresses the boot ENI starts with,
	Prefixes       int        // or how many IPv4 prefixes
	IPv6           int        // how many IPv6 addresses it starts with; 0: one if the subnet has AssignIPv6
	IPv6Prefixes   int        // or how many IPv6 prefixes
	EFAOnly        int        // how many network cards, from the first on, also have an ENI for EFA alone
	Role           string     // the IAM role that the metadata gives credentials of; "node" if empty
	Tags           map[string]string
}
