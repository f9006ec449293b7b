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

// A step makes one call on each side. The function in the field "do" makes the call, with the suite's client. A probe
// calls this function again with recorded answers, so the function must not change the side.
type step struct {
	name       string
	do         func(context.Context, *side, *aws.Client) (any, error)
	keepResult func(*side, any)      // stores the parts of the result that later steps need
	isDone     func(*side, any) bool // if not nil, the step runs again until isDone returns true
	refused    bool                  // both sides should refuse the call; if one does not, the table shows this
}

// IDs that no object has.
const (
	noENI        = "eni-0a0a0a0a0a0a0a0a0"
	noAttachment = "eni-attach-0a0a0a0a0a0a0a0a0"
	noSubnet     = "subnet-0a0a0a0a0a0a0a0a0"
	noGroup      = "sg-0a0a0a0a0a0a0a0a0"
)

// newENIIndex is the device index at which the steps attach the new ENI. The boot ENI has index 0.
const newENIIndex = 1

// outsideAddr is an address that no ENI can have (RFC 5737).
var outsideAddr = netip.MustParseAddr("192.0.2.1")

// allSteps are the steps of a comparison, in this order.
var allSteps = slices.Concat(querySteps, createSteps, attachSteps, addressSteps, deleteSteps)

var querySteps = []step{
	resultStep("identity of the node", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Instance(ctx)
	},
		func(s *side, v any) { s.names.addName(v.(aws.Instance).MAC, "boot MAC") }),
	resultStep("metadata of the boot ENI", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		func(s *side, v any) { s.names.addName(v.([]aws.ENI)[0].ID, "the boot ENI") }),
	resultStep("the instance type", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Limits(ctx, s.place.Type)
	}, nil),
	resultStep("the subnets of the zone", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Subnets(ctx, s.place.VPC, s.place.Zone)
	}, nil),
	resultStep("the VPC", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.VPC(ctx, s.place.VPC)
	}, nil),
	resultStep("the VPC's peers", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Peers(ctx, s.place.VPC)
	}, nil),
	resultStep("the ENIs of the node", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByInstance(s.place.Node))
	}, func(s *side, v any) {
		s.boot = v.([]aws.ENI)[0]
		s.names.addName(s.boot.Attachment, "the boot ENI's attachment")
	}),
	refusedStep("an instance type that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Limits(ctx, "t3.enormous")
		return err
	}),
	resultStep("an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByID(noENI))
	}, nil),
}

var createSteps = []step{
	refusedStep("a new ENI in a subnet that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: noSubnet, SecurityGroups: []string{s.place.Group},
			Tags: s.options.Tags})
		return err
	}),
	refusedStep("a new ENI with a group that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: s.place.Subnet, SecurityGroups: []string{noGroup},
			Tags: s.options.Tags})
		return err
	}),
	dryRunStep("CreateNetworkInterface"),
	resultStep("a new ENI with two addresses", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.CreateENI(ctx, s.newENISpec(1))
	},
		func(s *side, v any) {
			s.eni = v.(aws.ENI)
			s.names.addName(s.eni.ID, "the new ENI")
			s.names.addName(s.eni.MAC, "new MAC")
			s.names.addName(s.eni.Addrs[0].String(), "the new ENI's address")
		}),
	waitStep("the new ENI, described", func(s *side, v any) bool {
		return onlyENI(v) != nil && onlyENI(v).Status == "available"
	}),
	resultStep("the same ENI, created again", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.CreateENI(ctx, s.newENISpec(1))
	}, nil),
	refusedStep("the same client token for another ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.CreateENI(ctx, s.newENISpec(2))
		return err
	}),
}

var attachSteps = []step{
	refusedStep("attach at an index that is taken", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, s.eni.ID, s.place.Node, 0, 0)
		return err
	}),
	refusedStep("attach an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, noENI, s.place.Node, 0, newENIIndex)
		return err
	}),
	dryRunStep("AttachNetworkInterface"),
	resultStep("attach", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.AttachENI(ctx, s.eni.ID, s.place.Node, 0, newENIIndex)
	}, func(s *side, v any) {
		s.attachment = v.(string)
		s.names.addName(s.attachment, "the attachment")
	}),
	waitStep("the attached ENI, described", func(s *side, _ any) bool {
		return bytes.Contains(s.answers["DescribeNetworkInterfaces"].body, []byte("<status>attached</status>"))
	}),
	refusedStep("attach the ENI a second time", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.AttachENI(ctx, s.eni.ID, s.place.Other, 0, newENIIndex)
		return err
	}),
	dryRunStep("ModifyNetworkInterfaceAttribute"),
	changeStep("delete the ENI with the instance", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteOnTermination(ctx, s.eni.ID, s.attachment)
	}),
	{name: "metadata of both ENIs", do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		isDone: func(s *side, v any) bool {
			enis, _ := v.([]aws.ENI)
			return len(enis) == 2 && s.listedENIs() == 2 && isComplete(enis[1])
		}},
}

var addressSteps = []step{
	dryRunStep("AssignPrivateIpAddresses"),
	resultStep("one more address", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.Assign(ctx, s.eni.ID, 1)
	},
		func(s *side, v any) { s.assigned = v.([]netip.Addr) }),
	refusedStep("an address that another ENI has", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.AssignAddr(ctx, s.eni.ID, s.place.OtherAddr)
	}),
	refusedStep("an address outside the subnet", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.AssignAddr(ctx, s.eni.ID, outsideAddr)
	}),
	refusedStep("more addresses than the type allows", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Assign(ctx, s.eni.ID, 40)
		return err
	}),
	refusedStep("an address for an ENI that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		_, err := c.Assign(ctx, noENI, 1)
		return err
	}),
	dryRunStep("UnassignPrivateIpAddresses"),
	refusedStep("unassign the primary address", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.eni.Addrs[0])
	}),
	changeStep("unassign an address", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.assigned...)
	}),
	refusedStep("unassign the address again", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.Unassign(ctx, s.eni.ID, s.assigned...)
	}),
	resultStep("a prefix", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.AssignPrefixes(ctx, s.eni.ID, 1)
	},
		func(s *side, v any) { s.prefixes = v.([]netip.Prefix) }),
	waitStep("the ENI with a prefix, described", func(s *side, v any) bool {
		return onlyENI(v) != nil && len(onlyENI(v).Prefixes) == 1
	}),
	changeStep("unassign the prefix", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.UnassignPrefixes(ctx, s.eni.ID, s.prefixes...)
	}),
	dryRunStep("AssignIpv6Addresses"),
	dryRunStep("UnassignIpv6Addresses"),
}

var deleteSteps = []step{
	refusedStep("delete an attached ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteENI(ctx, s.eni.ID)
	}),
	refusedStep("detach the boot ENI", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DetachENI(ctx, s.boot.Attachment)
	}),
	refusedStep("detach an attachment that does not exist", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DetachENI(ctx, noAttachment)
	}),
	dryRunStep("DetachNetworkInterface"),
	changeStep("detach", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DetachENI(ctx, s.attachment)
	}),
	waitStep("the detached ENI, described", func(s *side, v any) bool {
		return onlyENI(v) != nil && onlyENI(v).Status == "available"
	}),
	dryRunStep("DeleteNetworkInterface"),
	changeStep("delete", func(ctx context.Context, s *side, c *aws.Client) error { return c.DeleteENI(ctx, s.eni.ID) }),
	waitStep("the deleted ENI, described", func(_ *side, v any) bool { return onlyENI(v) == nil }),
	refusedStep("delete the ENI again", func(ctx context.Context, s *side, c *aws.Client) error {
		return c.DeleteENI(ctx, s.eni.ID)
	}),
	{name: "metadata after the deletion", do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.ENIs(ctx)
	},
		isDone: func(s *side, _ any) bool { return s.listedENIs() == 1 }},
	dryRunStep("DescribeNetworkInterfaces"), dryRunStep("DescribeSubnets"), dryRunStep("DescribeVpcs"),
	dryRunStep("DescribeVpcPeeringConnections"),
	dryRunStep("DescribeInstanceTypes"), dryRunStep("DescribeInstances"),
	resultStep("whether the instance runs", func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.StateOf(ctx, s.place.Node)
	}, func(*side, any) {}),
}

// newENISpec returns the spec of the new ENI, with this number of secondary addresses.
func (s *side) newENISpec(secondary int) aws.ENISpec {
	return aws.ENISpec{Subnet: s.place.Subnet, SecurityGroups: []string{s.place.Group}, Description: "acceptance test",
		Tags:  s.options.Tags,
		Token: "acceptance-" + s.place.Node, Secondary: secondary}
}

// resultStep returns a step whose call must succeed and has a result.
func resultStep(name string, do func(context.Context, *side, *aws.Client) (any, error), keep func(*side, any)) step {
	return step{name: name, do: do, keepResult: keep}
}

// changeStep returns a step whose call must succeed and has no result.
func changeStep(name string, do func(context.Context, *side, *aws.Client) error) step {
	return step{name: name, do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return nil, do(ctx, s, c)
	}}
}

// refusedStep returns a step with a call that both sides should refuse.
func refusedStep(name string, do func(context.Context, *side, *aws.Client) error) step {
	s := changeStep(name, do)
	s.refused = true
	return s
}

// dryRunStep returns a step with a dry run of an action: see [aws.Client.DryRun].
func dryRunStep(action string) step {
	return step{name: "dry run of " + action, refused: true, do: func(ctx context.Context, s *side,
		c *aws.Client) (any, error) {
		return nil, c.DryRun(ctx, action, aws.Target{ENI: s.eni.ID, Attachment: s.attachment, Instance: s.place.Node,
			Subnet:         s.place.Subnet,
			SecurityGroups: []string{s.place.Group}, Tags: s.options.Tags})
	}}
}

// waitStep returns a step that describes the new ENI. The second argument is the step's isDone.
func waitStep(name string, until func(*side, any) bool) step {
	return step{name: name, isDone: until, do: func(ctx context.Context, s *side, c *aws.Client) (any, error) {
		return c.DescribeENIs(ctx, aws.ByID(s.eni.ID))
	}}
}

// listedENIs returns the number of ENIs in metadata's list of MACs. If metadata does not show all keys of a listed ENI
// yet, the client's result lacks this ENI.
func (s *side) listedENIs() int {
	return len(bytes.Fields(s.answers["/latest/meta-data/network/interfaces/macs/"].body))
}

// isComplete reports whether metadata shows all keys of the new ENI. The keys appear one after another.
func isComplete(e aws.ENI) bool {
	return e.Index == newENIIndex && len(e.Addrs) == 2 && e.CIDR.IsValid() && len(e.VPCCIDRs) > 0 &&
		len(e.SecurityGroups) > 0
}

// onlyENI returns the only ENI in the result of DescribeENIs, or nil.
func onlyENI(v any) *aws.ENI {
	if enis, ok := v.([]aws.ENI); ok && len(enis) == 1 {
		return &enis[0]
	}
	return nil
}
