// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package compare

import (
	"bytes"
	"context"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// A step is one call of the suite's client. The function do must not change the side, because a probe calls do again.
type step struct {
	name    string
	do      func(context.Context, *side, *aws.Client) (any, error)
	keep    func(*side, any)      // keeps in the side what later steps need
	until   func(*side, any) bool // the step is repeated until this function returns true
	refused bool                  // EC2 should refuse the call; if EC2 allows the call, the comparison shows this
}

// IDs that no object has.
const (
	noENI        = "eni-0a0a0a0a0a0a0a0a0"
	noAttachment = "eni-attach-0a0a0a0a0a0a0a0a0"
	noSubnet     = "subnet-0a0a0a0a0a0a0a0a0"
	noGroup      = "sg-0a0a0a0a0a0a0a0a0"
)

// index is the device index of the new ENI. The boot ENI is at 0.
const index = 1

// stranger is an address that no ENI of the VPC has (RFC 5737).
var stranger = netip.MustParseAddr("192.0.2.1")

// script has all steps. The steps create, use and delete an ENI, ask the questions of the suite, and make calls that
// EC2 must refuse.
var script = slices.Concat(questions, birth, attaching, addresses, end)

var questions = []step{
	ask("identity of the node", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Instance(ctx)
	},
		func(s *side, v any) { s.names.add(v.(aws.Instance).MAC, "boot MAC") }),
	ask("metadata of the boot ENI", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		func(s *side, v any) { s.names.add(v.([]aws.ENI)[0].ID, "the boot ENI") }),
	ask("the instance type", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Limits(ctx, s.place.Type)
	}, nil),
	ask("the subnets of the zone", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Subnets(ctx, s.place.VPC, s.place.Zone)
	}, nil),
	ask("the VPC", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.VPC(ctx, s.place.VPC)
	}, nil),
	ask("the VPC's peers", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Peers(ctx, s.place.VPC)
	}, nil),
	ask("the ENIs of the node", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByInstance(s.place.Node))
	}, func(s *side, v any) {
		s.boot = v.([]aws.ENI)[0]
		s.names.add(s.boot.Attachment, "the boot ENI's attachment")
	}),
	refused("an instance type that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Limits(ctx, "t3.enormous")
		return err
	}),
	ask("an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByID(noENI))
	}, nil),
}

var birth = []step{
	refused("a new ENI in a subnet that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: noSubnet, SecurityGroups: []string{s.place.Group},
			Tags: s.options.Tags})
		return err
	}),
	refused("a new ENI with a group that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: s.place.Subnet, SecurityGroups: []string{noGroup},
			Tags: s.options.Tags})
		return err
	}),
	dry("CreateNetworkInterface"),
	ask("a new ENI with two addresses", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.CreateENI(ctx, s.spec(1))
	},
		func(s *side, v any) {
			s.eni = v.(aws.ENI)
			s.names.add(s.eni.ID, "the new ENI")
			s.names.add(s.eni.MAC, "new MAC")
			s.names.add(s.eni.Addrs[0].String(), "the new ENI's address")
		}),
	wait("the new ENI, described", func(s *side, v any) bool { return one(v) != nil && one(v).Status == "available" }),
	ask("the same creation again", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.CreateENI(ctx, s.spec(1))
	}, nil),
	refused("the same client token for another ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, s.spec(2))
		return err
	}),
}

var attaching = []step{
	refused("attach at an index that is taken", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, s.eni.ID, s.place.Node, 0, 0)
		return err
	}),
	refused("attach an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, noENI, s.place.Node, 0, index)
		return err
	}),
	dry("AttachNetworkInterface"),
	ask("attach", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.AttachENI(ctx, s.eni.ID, s.place.Node, 0, index)
	}, func(s *side, v any) {
		s.attachment = v.(string)
		s.names.add(s.attachment, "the attachment")
	}),
	wait("the attached ENI, described", func(s *side, _ any) bool {
		return bytes.Contains(s.heard["DescribeNetworkInterfaces"].body, []byte("<status>attached</status>"))
	}),
	refused("attach it a second time", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, s.eni.ID, s.place.Other, 0, index)
		return err
	}),
	dry("ModifyNetworkInterfaceAttribute"),
	change("delete it with the instance", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteOnTermination(ctx, s.eni.ID, s.attachment)
	}),
	{name: "metadata of both ENIs", do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		until: func(s *side, v any) bool {
			enis, _ := v.([]aws.ENI)
			return len(enis) == 2 && s.listed() == 2 && complete(enis[1])
		}},
}

var addresses = []step{
	dry("AssignPrivateIpAddresses"),
	ask("one more address", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Assign(ctx, s.eni.ID, 1)
	},
		func(s *side, v any) { s.assigned = v.([]netip.Addr) }),
	refused("an address that another ENI has", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.AssignAddr(ctx, s.eni.ID, s.place.OtherAddr)
	}),
	refused("an address outside the subnet", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.AssignAddr(ctx, s.eni.ID, stranger)
	}),
	refused("more addresses than the type allows", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Assign(ctx, s.eni.ID, 40)
		return err
	}),
	refused("an address for an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Assign(ctx, noENI, 1)
		return err
	}),
	dry("UnassignPrivateIpAddresses"),
	refused("unassign the primary address", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.eni.Addrs[0])
	}),
	change("unassign an address", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.assigned...)
	}),
	refused("unassign it again", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.assigned...)
	}),
	ask("a prefix", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.AssignPrefixes(ctx, s.eni.ID, 1)
	},
		func(s *side, v any) { s.prefixes = v.([]netip.Prefix) }),
	wait("the ENI with a prefix, described", func(s *side, v any) bool {
		return one(v) != nil && len(one(v).Prefixes) == 1
	}),
	change("unassign the prefix", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.UnassignPrefixes(ctx, s.eni.ID, s.prefixes...)
	}),
	dry("AssignIpv6Addresses"),
	dry("UnassignIpv6Addresses"),
}

var end = []step{
	refused("delete an attached ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteENI(ctx, s.eni.ID)
	}),
	refused("detach the boot ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DetachENI(ctx, s.boot.Attachment)
	}),
	refused("detach an attachment that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DetachENI(ctx, noAttachment)
	}),
	dry("DetachNetworkInterface"),
	change("detach", func(ctx context.Context, s *side, c *aws.Client) error { return c.DetachENI(ctx, s.attachment) }),
	wait("the detached ENI, described", func(s *side, v any) bool {
		return one(v) != nil && one(v).Status == "available"
	}),
	dry("DeleteNetworkInterface"),
	change("delete", func(ctx context.Context, s *side, c *aws.Client) error { return c.DeleteENI(ctx, s.eni.ID) }),
	wait("the deleted ENI, described", func(_ *side, v any) bool { return one(v) == nil }),
	refused("delete it again", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteENI(ctx, s.eni.ID)
	}),
	{name: "metadata after the ENI", do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		until: func(s *side, _ any) bool { return s.listed() == 1 }},
	dry("DescribeNetworkInterfaces"), dry("DescribeSubnets"), dry("DescribeVpcs"), dry("DescribeVpcPeeringConnections"),
	dry("DescribeInstanceTypes"), dry("DescribeInstances"),
	ask("whether the instance runs", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.StateOf(ctx, s.place.Node)
	}, func(*side, any) {}),
}

// spec describes the new ENI.
func (s *side) spec(secondary int) aws.ENISpec {
	return aws.ENISpec{Subnet: s.place.Subnet, SecurityGroups: []string{s.place.Group}, Description: "acceptance test",
		Tags:  s.options.Tags,
		Token: "acceptance-" + s.place.Node, Secondary: secondary}
}

// ask returns a step that must succeed and has a result.
func ask(name string, do func(context.Context, *side, *aws.Client) (any, error), keep func(*side, any)) step {
	return step{name: name, do: do, keep: keep}
}

// change returns a step that must succeed and has no result.
func change(name string, do func(context.Context, *side, *aws.Client) error) step {
	return step{name: name, do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return nil, do(ctx, s, c)
	}}
}

// refused returns a step that EC2 must refuse.
func refused(name string, do func(context.Context, *side, *aws.Client) error) step {
	s := change(name, do)
	s.refused = true
	return s
}

// dry returns a step with a dry run of an action: see [aws.Client.DryRun]. EC2 refuses each dry run. If the code of the
// refusal proves that the caller has the permission, the client returns nil.
func dry(action string) step {
	return step{name: "dry run of " + action, refused: true, do: func(ctx context.Context, s *side,
		c *aws.Client) (any, error) {
		return nil, c.DryRun(ctx, action, aws.Target{ENI: s.eni.ID, Attachment: s.attachment, Instance: s.place.Node,
			Subnet:         s.place.Subnet,
			SecurityGroups: []string{s.place.Group}, Tags: s.options.Tags})
	}}
}

// wait returns a step that describes the new ENI again and again, until the function until returns true.
func wait(name string, until func(*side, any) bool) step {
	return step{name: name, until: until, do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByID(s.eni.ID))
	}}
}

// listed returns the number of ENIs in the list of metadata. The list and the keys of an ENI do not change at the same
// time.
func (s *side) listed() int {
	return len(bytes.Fields(s.heard["/latest/meta-data/network/interfaces/macs/"].body))
}

// complete reports whether metadata has all keys of the new ENI. The keys appear one after another.
func complete(e aws.ENI) bool {
	return e.Index == index && len(e.Addrs) == 2 && e.CIDR.IsValid() && len(e.VPCCIDRs) > 0 && len(e.SecurityGroups) > 0
}

// one returns the only ENI of a description, or nil.
func one(v any) *aws.ENI {
	if enis, ok := v.([]aws.ENI); ok && len(enis) == 1 {
		return &enis[0]
	}
	return nil
}
