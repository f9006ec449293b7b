// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package ec2sim simulates the network side of Amazon EC2. It keeps one state in memory. From this state, it answers
// requests of the EC2 query protocol, and requests to the metadata service (IMDSv2) of each instance. It is for tests
// of programs that manage network interfaces and private addresses. The programs and the SDK run unchanged, because two
// environment variables (AWS_ENDPOINT_URL_EC2 and AWS_EC2_METADATA_SERVICE_ENDPOINT) point to the two handlers of this
// package.
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
// The simulator refuses what EC2 refuses, with EC2's codes and statuses. Each rule in the code names its source: a page
// of the EC2 API reference ("API:"), of the EC2 user guide ("Guide:") or of the VPC user guide ("VPC Guide:"). If a
// rule is observed but not documented, its comment says "in practice". These are the most important rules:
//
//   - An instance type limits the ENIs of an instance and of a network card, and the addresses and prefixes of an ENI.
//   - A subnet has IPv4, IPv6 or both. EC2 reserves the first four addresses and the last address of a subnet. Every
//     other address belongs to one ENI at most. A prefix needs an aligned free block (/28 or /80). So a subnet can have
//     free addresses, and still have no room for a prefix.
//   - An ENI has one attachment at most. The attachment has a free device index of a network card, on an instance in
//     the ENI's zone. Each card has its own indices. The boot ENI cannot be detached, an attached ENI cannot be
//     deleted, and a primary address cannot be unassigned.
//   - All calls with the same client token create only one ENI.
//
// # Faults
//
// Faults of EC2 and of the metadata service happen only when a test orders them:
//
//   - Attachments, detachments and changes of the metadata take as long as the [Config] says.
//   - EC2 throttles requests if its token buckets are empty ([Config.Throttle]). Requests fail ([Sim.Fail]), or take
//     long ([Sim.Delay]).
//   - EC2 carries out a call, but its answer is lost ([Sim.Lose]).
//   - The clock of the machine differs from EC2's ([Sim.SetClock]).
//   - Describe actions show an older state, and actions do not find a new ENI at once ([Config.Lag]).
//   - The metadata service gives wrong answers ([Instance.Lie]), in particular after a restart ([Instance.Reboot]).
//
// EC2 does not document which free address it chooses. The simulator takes the addresses of a subnet in turn. So a test
// gets the same addresses in each run. The simulator also uses a freed address again as late as possible. IDs and MAC
// addresses contain a counter, so they are also the same in each run.
//
// # Limits
//
// The simulator is not a mock, because all answers follow from one state. It moves no packets. Package vpcsim moves
// packets, and learns of changes through [Sim.OnChange]. The simulator checks no signatures and evaluates no policies.
// It refuses the actions of [Config.Denied], and allows all other actions. There is no Elastic IP address, no primary
// IPv6 address, no volume, and no action that stops instances. The simulator keeps the rules of security groups, but
// does not apply them. Describe actions know only the filters that the programs of this repository send. They refuse
// all other filters. Each ENI is an ordinary ENI, or an EFA-only ENI that a launch has created. All times come from
// package time, so a simulator inside a testing/synctest bubble uses the bubble's clock. If EC2's documentation leaves
// a rule open, the comment at the rule says that the rule is a guess.
//
// Two invariants always hold. An address of a subnet belongs to one network interface at most. The free count of a
// subnet is exactly the number of its unused addresses.
package ec2sim

import (
	"net/netip"
	"time"
)

// A Config describes the world before the first call.
type Config struct {
	Region         string            // "us-east-1" if empty
	Account        string            // twelve digits; if empty, "123456789012" as in AWS's examples
	VPCs           []VPC             // at least one
	Subnets        []Subnet          // in the VPCs above
	Peerings       []Peering         // each peering has at least one of the VPCs above
	SecurityGroups []string          // IDs of the security groups that exist; if empty, every ID exists
	GroupVPCs      map[string]string // for each group ID, its VPC; a group without an entry is in every VPC
	GroupNames     map[string]string // for each group ID, its name; a group without an entry is named by its ID
	Images         []Image           // the machine images; if nil, two images of Debian
	InstanceTypes  []InstanceType    // more types; each replaces the built-in type with its name
	// The second and the third byte of all MAC addresses. Simulations with different MACs can share a machine, because
	// their links have different MAC addresses.
	MACs uint16

	Denied []string // actions that are refused with UnauthorizedOperation, as if no IAM policy allowed them

	Throttle bool              // requests take tokens, as in EC2; if false, there is no limit
	Buckets  map[string]Bucket // for some actions, buckets that replace EC2's defaults; only with Throttle

	Lag       Lag           // how old the state in EC2's answers can be
	TokenLife time.Duration // how long EC2 remembers the client token of a deleted ENI; 0: for ever

	AttachDelay   time.Duration // how long an attachment stays "attaching" after AttachNetworkInterface has answered
	DetachDelay   time.Duration // how long an attachment stays "detaching" after DetachNetworkInterface has answered
	MetadataDelay time.Duration // how long a change takes to appear in the instance's metadata

	BootDelay      time.Duration // how long an instance stays "pending" after the action RunInstances has answered
	TerminateDelay time.Duration // how long an instance stays "shutting-down" after TerminateInstances has answered
}

// A VPC is a virtual private cloud.
type VPC struct {
	ID        string
	CIDRs     []netip.Prefix // IPv4, the primary block first; a VPC always has one
	IPv6CIDRs []netip.Prefix // usually one /56, or none
	// blocks of either family that were removed: DescribeVpcs still lists them as disassociated
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

// A Peering is a connection between two VPCs, of which at least one is in the Config.
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
	Account   string // if empty, that of the Config
	Region    string // if empty, that of the Config
}

// An InstanceType holds the network limits of an instance type (Guide: "Maximum IP addresses per network interface").
type InstanceType struct {
	Name       string
	ENIs       int   // maximum number of network interfaces, including the boot ENI
	IPv4PerENI int   // private IPv4 addresses and prefixes of one ENI, including the primary address
	IPv6PerENI int   // IPv6 addresses and prefixes of one ENI; 0: the type has no IPv6
	Cards      []int // the maximum number of ENIs of each network card; nil: one card for all ENIs
	Xen        bool  // not a Nitro type: no delegated prefixes (Guide: "Prefix delegation ...")

	// The time in seconds after which EC2 no longer tracks an idle TCP connection. 0 means 432000 seconds. An ENI can
	// have another time ([Tracking]).
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
	Prefixes       int        // in place of Secondary: how many IPv4 prefixes the boot ENI has at launch
	IPv6           int        // how many IPv6 addresses the boot ENI has at launch; 0: one if the subnet has AssignIPv6
	IPv6Prefixes   int        // in place of IPv6: how many IPv6 prefixes the boot ENI has at launch
	BootIndex      int        // the device index of the boot ENI: 0 except on SageMaker HyperPod
	BootCard       int        // the boot ENI's card: 0 except on HyperPod (aws/amazon-vpc-cni-k8s#3753 shows 1)
	EFAOnly        int        // how many network cards, counted from card 0, get an EFA-only ENI
	PublicIP       *bool      // whether the boot ENI has a public address; nil: the subnet's MapPublicIP
	Role           string     // the IAM role whose credentials the metadata gives; "node" if empty
	Tracking       Tracking   // of the boot ENI
	Tags           map[string]string
	ENITags        map[string]string // of the boot ENI
}
