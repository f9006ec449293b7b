// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ec2sim simulates the network side of Amazon EC2, for tests of programs that manage network interfaces and
// private addresses. It answers requests of the EC2 query protocol, and requests to the metadata service (IMDSv2) of
// each instance. Programs and the SDK run unchanged if the environment variables AWS_ENDPOINT_URL_EC2 and
// AWS_EC2_METADATA_SERVICE_ENDPOINT have the URLs of the two HTTP handlers of this package.
//
//	sim, err := ec2sim.New(ec2sim.World(`
//		vpc-1    10.0.0.0/16
//		subnet-a 10.0.0.0/24`))
//	node, err := sim.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-a"})
//	ec2 := httptest.NewServer(sim)              // AWS_ENDPOINT_URL_EC2
//	imds := httptest.NewServer(node.Metadata()) // AWS_EC2_METADATA_SERVICE_ENDPOINT
//
// # Rules
//
// The simulator refuses what EC2 refuses, with EC2's codes and statuses. The comment at a rule names the page that
// documents the rule. "API:" means a page of the EC2 API reference. "Guide:" means a page of the EC2 user guide, and
// "VPC Guide:" means a page of the VPC user guide. The words "in practice" mean that users have observed the rule, but
// no page documents it. These are the most important rules:
//
//   - An instance type limits the ENIs of an instance and of a network card, and the addresses and prefixes of an ENI.
//   - A subnet has IPv4, IPv6 or both. EC2 reserves the first four addresses and the last address of a subnet. Every
//     other address belongs to one ENI at most. A prefix needs an aligned free block (/28 or /80). So a subnet can have
//     free addresses, and still have no room for a prefix.
//   - An ENI has one attachment at most. The instance must be in the ENI's zone, and the device index must be free.
//     Each network card has its own device indices. EC2 does not detach the boot ENI, does not delete an attached ENI,
//     and does not unassign a primary address.
//   - All calls with the same client token create only one ENI.
//
// # Faults
//
// EC2 and the metadata service have these faults only if a test switches them on:
//
//   - Attachments, detachments and changes of the metadata take as long as the [Config] says.
//   - EC2 throttles requests if its token buckets are empty ([Config.Throttle]). Requests fail ([Sim.Fail]), or take
//     long ([Sim.Delay]).
//   - EC2 carries out a call, but the caller gets no answer ([Sim.Lose]).
//   - The clock of the machine differs from EC2's ([Sim.SetClock]).
//   - Describe actions show an old state, and other actions find a new ENI only after some time ([Config.Lag]).
//   - The metadata service gives wrong answers ([Instance.Lie]), in particular after a restart ([Instance.Reboot]).
//
// The documentation does not say which free address EC2 chooses. The simulator takes the addresses of a subnet in
// ascending order. After the last address, it starts again with the first. So a test gets the same addresses in each
// run, and the simulator reuses a freed address as late as possible. IDs and MAC addresses contain a number that counts
// from 1. So a test also gets the same IDs and MAC addresses in each run.
//
// # Limits
//
// The simulator moves no packets. Package vpcsim moves the packets. The simulator checks no signatures and evaluates no
// policies. It refuses the actions in [Config.Denied], and allows all other actions. The simulator has no Elastic IP
// addresses, no primary IPv6 addresses, no volumes, and no action that stops instances. The simulator keeps the rules
// of security groups, but does not apply them. Describe actions know only the filters that the programs of this
// repository send, and refuse all other filters. Only a launch can create EFA-only ENIs. Other special types of ENIs do
// not exist. The simulator gets the time from package time, so inside a testing/synctest bubble it uses the bubble's
// clock. If the documentation does not define a rule, the comment at the rule says that the rule is a guess.
package ec2sim

import (
	"net/netip"
	"time"
)

// A Config describes the state of EC2 before the first call, and how EC2 behaves.
type Config struct {
	Region         string            // "us-east-1" if empty
	Account        string            // twelve digits; if empty, "123456789012" as in AWS's examples
	VPCs           []VPC             // at least one
	Subnets        []Subnet          // in the VPCs above
	Peerings       []Peering         // at least one side of each peering is in VPCs
	SecurityGroups []string          // IDs of the security groups that exist; if empty, every ID exists
	GroupVPCs      map[string]string // key: group ID; value: the group's VPC; groups without an entry work in all VPCs
	GroupNames     map[string]string // key: group ID; value: group name; without an entry, the name is the ID
	Images         []Image           // the machine images; if nil, two images of Debian
	InstanceTypes  []InstanceType    // further types; a type replaces the built-in type of the same name
	// The second and the third byte of all MAC addresses. With different values, several simulations on one machine
	// have no equal MAC addresses.
	MACs uint16

	Denied []string // EC2 refuses these actions with UnauthorizedOperation, as if no IAM policy allowed them

	Throttle bool              // EC2 limits the rate of requests with token buckets; if false, there is no limit
	Buckets  map[string]Bucket // by action, buckets that replace EC2's defaults; only with Throttle

	Lag       Lag           // how old the state in EC2's answers can be
	TokenLife time.Duration // how long EC2 remembers the client token of a deleted ENI; 0: for ever

	AttachDelay   time.Duration // how long an attachment stays "attaching" after AttachNetworkInterface has answered
	DetachDelay   time.Duration // how long an attachment stays "detaching" after DetachNetworkInterface has answered
	MetadataDelay time.Duration // how long metadata takes to show a change

	BootDelay      time.Duration // how long an instance stays "pending" after the action RunInstances has answered
	TerminateDelay time.Duration // how long an instance stays "shutting-down" after TerminateInstances has answered
}

// A VPC is a virtual private cloud.
type VPC struct {
	ID        string
	CIDRs     []netip.Prefix // IPv4 blocks, at least one; the first block is the primary block
	IPv6CIDRs []netip.Prefix // usually one /56, or none
	// Removed blocks of both families. DescribeVpcs still lists them, as disassociated.
	FormerCIDRs []netip.Prefix
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
	MapPublicIP bool         // the boot ENIs of instances in this subnet get a public address
	// New ENIs in this subnet get an IPv6 address by default (API: Subnet, AssignIpv6AddressOnCreation).
	AssignIPv6 bool
	Default    bool   // the default subnet of its zone
	Outpost    string // ARN of the subnet's Outpost; empty: none
	Tags       map[string]string
}

// A Peering is a connection between two VPCs. At least one of the VPCs is in the Config.
type Peering struct {
	ID        string
	Requester PeerVPC
	Accepter  PeerVPC
	Status    string // a status of API: VpcPeeringConnectionStateReason; if empty, "active"
	Tags      map[string]string
}

// A PeerVPC is one side of a Peering. If the VPC is in the Config, only its ID is necessary.
type PeerVPC struct {
	ID        string
	CIDRs     []netip.Prefix // IPv4
	IPv6CIDRs []netip.Prefix
	Account   string // if empty, the account of the Config
	Region    string // if empty, the region of the Config
}

// An InstanceType holds the network limits of an instance type (Guide: "Maximum IP addresses per network interface").
type InstanceType struct {
	Name       string
	ENIs       int   // maximum number of network interfaces, including the boot ENI
	IPv4PerENI int   // maximum number of private IPv4 addresses and prefixes of one ENI, including the primary address
	IPv6PerENI int   // maximum number of IPv6 addresses and prefixes of one ENI; 0: the type has no IPv6
	Cards      []int // the maximum number of ENIs of each network card; nil: one card for all ENIs
	Xen        bool  // the type is not a Nitro type, so it has no prefixes (Guide: "Prefix delegation ...")

	// After this time in seconds, EC2 no longer tracks an idle TCP connection. 0 means 432000 seconds. An ENI can have
	// its own time ([Tracking]).
	TCPEstablished int
}

// RunInstance describes the launch of an instance (API: RunInstances). Most fields are about the boot ENI, which is the
// first network interface of the instance.
type RunInstance struct {
	Type           string
	Subnet         string
	SecurityGroups []string
	PrivateIP      netip.Addr // the primary address of the boot ENI; zero: EC2's choice
	Secondary      int        // how many secondary addresses the boot ENI has at launch
	Prefixes       int        // how many IPv4 prefixes the boot ENI has at launch; not together with Secondary
	IPv6           int        // how many IPv6 addresses the boot ENI has at launch; 0: the subnet's AssignIPv6 decides
	IPv6Prefixes   int        // how many IPv6 prefixes the boot ENI has at launch; not together with IPv6
	BootIndex      int        // the device index of the boot ENI: 0 except on SageMaker HyperPod
	BootCard       int        // the boot ENI's card: 0 except on HyperPod (aws/amazon-vpc-cni-k8s#3753 shows 1)
	EFAOnly        int        // how many network cards get an EFA-only ENI, counted from card 0
	PublicIP       *bool      // whether the boot ENI has a public address; nil: the subnet's MapPublicIP
	Role           string     // the IAM role whose credentials the metadata gives; "node" if empty
	Tracking       Tracking   // of the boot ENI
	Tags           map[string]string
	ENITags        map[string]string // of the boot ENI
}
