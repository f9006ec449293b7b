// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// world returns a VPC with a secondary CIDR, two subnets for pods, two peers and a node.
func world(t *testing.T, instanceType string) (*ec2sim.Sim, *ec2sim.Instance, *aws.Client) {
	t.Helper()
	return launched(t, ec2sim.World(`
		vpc-1    10.0.0.0/16 100.64.0.0/16 -100.65.0.0/16
		subnet-a 10.0.0.0/24 default
		subnet-b 100.64.1.0/24 pods=yes
		subnet-c 10.0.2.0/28
		subnet-d 10.0.3.0/24 us-east-1b
		vpc-2    10.9.0.0/16
		subnet-e 10.9.0.0/24
		pcx-1    vpc-1 vpc-2
		pcx-2    vpc-3 10.8.0.0/16 10.7.0.0/16 10.9.0.0/16 vpc-1
		pcx-3    vpc-1 vpc-4 10.6.0.0/16 deleted
		pcx-4    vpc-2 vpc-5 10.5.0.0/16`),
		ec2sim.RunInstance{Type: instanceType, Subnet: "subnet-a", SecurityGroups: []string{"sg-node"}})
}

// launched starts a simulated EC2 with a node. It also returns a client for EC2 and for the node's metadata.
func launched(
	t testing.TB, c ec2sim.Config, run ec2sim.RunInstance,
) (*ec2sim.Sim, *ec2sim.Instance, *aws.Client) {
	t.Helper()
	sim, err := ec2sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	node, err := sim.RunInstance(run)
	if err != nil {
		t.Fatal(err)
	}
	return sim, node, client(sim, node.Metadata())
}

func prefixes(cidrs ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range cidrs {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("%s: -want +got:\n%s", what, diff)
	}
}

// must returns the value of a call that must succeed.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// TestLifeOfAnENI makes every kind of change to an ENI. After each change, it checks the ENI in EC2 and in the client's
// answer.
func TestLifeOfAnENI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, node, c := world(t, "m5.large")
		ctx := t.Context()
		me := must(c.Instance(ctx))(t)
		boot := must(c.ENIs(ctx))(t)
		if len(boot) != 1 || boot[0].MAC != me.MAC || boot[0].Index != 0 || me.ID != node.ID || me.Type != "m5.large" {
			t.Fatalf("%+v has %+v", me, boot)
		}

		created := must(c.CreateENI(ctx, aws.ENISpec{
			Subnet: "subnet-b", SecurityGroups: []string{"sg-1", "sg-2"}, Description: "CNI-ENI " + me.ID,
			Tags: map[string]string{"managed": "true", "pool": "a"}, Token: "token-1", Secondary: 2,
			Tracking: aws.Tracking{TCPEstablished: 7200, UDP: 45},
		}))(t)
		equal(t, "created", created, aws.ENI{
			ID: created.ID, MAC: created.MAC, Index: aws.UnknownIndex, Subnet: "subnet-b", VPC: "vpc-1",
			SecurityGroups: []string{"sg-1", "sg-2"},
			Addrs:          created.Addrs, Description: "CNI-ENI " + me.ID, Status: created.Status,
			Tags:     map[string]string{"managed": "true", "pool": "a"},
			Tracking: aws.Tracking{TCPEstablished: 7200, UDP: 45},
		})
		if truth := sim.ENIs()[1]; len(created.Addrs) != 3 || !slices.Equal(truth.Addrs, created.Addrs) {
			t.Errorf("EC2 answered %v, and has %v", created.Addrs, truth.Addrs)
		}

		attachment := must(c.AttachENI(ctx, created.ID, me.ID, 0, 2))(t)
		if err := c.DeleteOnTermination(ctx, created.ID, attachment); err != nil {
			t.Fatal(err)
		}
		more := must(c.Assign(ctx, created.ID, 3))(t)
		if len(more) != 3 {
			t.Errorf("assigned %v, want 3 addresses", more)
		}
		blocks := must(c.AssignPrefixes(ctx, created.ID, 2))(t)
		if len(blocks) != 2 || blocks[0].Bits() != 28 {
			t.Errorf("assigned %v, want 2 prefixes", blocks)
		}
		if err := c.Unassign(ctx, created.ID, more[0], more[2]); err != nil {
			t.Fatal(err)
		}
		if err := c.UnassignPrefixes(ctx, created.ID, blocks[0]); err != nil {
			t.Fatal(err)
		}

		want := created
		want.Addrs, want.Prefixes = append(slices.Clone(created.Addrs), more[1]), blocks[1:]
		want.Index, want.Status, want.Instance, want.Attachment, want.AttachmentStatus, want.DeleteOnTermination =
			2, "in-use", me.ID, attachment, aws.Attached, true
		for _, f := range []aws.Filter{aws.ByID(created.ID, "eni-00000000000000000"), aws.ByTag("pool", "a", "b")} {
			equal(t, "described", must(c.DescribeENIs(ctx, aws.ByInstance(me.ID), f))(t), []aws.ENI{want})
		}
		if got := must(c.DescribeENIs(ctx, aws.ByStatus("available")))(t); len(got) != 0 {
			t.Errorf("available: %v, want none", got)
		}
		seen := must(c.ENIs(ctx))(t)
		equal(t, "metadata", seen, []aws.ENI{boot[0], {
			ID: want.ID, MAC: want.MAC, Index: 2, Subnet: want.Subnet, VPC: want.VPC,
			SecurityGroups: want.SecurityGroups, Addrs: want.Addrs, Prefixes: want.Prefixes,
			CIDR: netip.MustParsePrefix("100.64.1.0/24"), VPCCIDRs: prefixes("10.0.0.0/16", "100.64.0.0/16"),
		}})

		if err := c.DetachENI(ctx, attachment); err != nil {
			t.Fatal(err)
		}
		if err := c.DeleteENI(ctx, created.ID); err != nil {
			t.Fatal(err)
		}
		if got := sim.ENIs(); len(got) != 1 {
			t.Errorf("left over: %v", got)
		}
		if err := c.DeleteENI(ctx, created.ID); !errors.Is(err, aws.ErrNotFound) {
			t.Errorf("deleted again: %v, want ErrNotFound", err)
		}
	})
}

// TestRequests checks the parameters that EC2 gets. If there is nothing to unassign, the Client must make no call.
func TestRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, node, c := world(t, "m5.large")
		ctx := t.Context()
		e := must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-b"}))(t)
		must(c.AttachENI(ctx, e.ID, node.ID, 0, 1))(t)
		if err := errors.Join(c.Unassign(ctx, e.ID), c.UnassignPrefixes(ctx, e.ID)); err != nil {
			t.Error(err)
		}
		if err := c.Unassign(ctx, e.ID, must(c.Assign(ctx, e.ID, 2))(t)...); err != nil {
			t.Error(err)
		}
		var got []string
		for _, call := range sim.Calls() {
			got = append(got, call.String())
		}
		equal(t, "calls", got, []string{
			"CreateNetworkInterface SubnetId=subnet-b",
			"AttachNetworkInterface DeviceIndex=1 InstanceId=" + node.ID +
				" NetworkCardIndex=0 NetworkInterfaceId=" + e.ID,
			"AssignPrivateIpAddresses NetworkInterfaceId=" + e.ID + " SecondaryPrivateIpAddressCount=2",
			"UnassignPrivateIpAddresses NetworkInterfaceId=" + e.ID +
				" PrivateIpAddress.1=100.64.1.5 PrivateIpAddress.2=100.64.1.6",
		})
		if token := sim.Calls()[0].Params["ClientToken"]; token == "" {
			t.Error("CreateNetworkInterface without a token")
		}
	})
}

// TestRefusals makes calls that EC2 refuses. It checks that the simulator refuses them, and which error the Client
// returns.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, node, c := world(t, "m5.large")
		ctx := t.Context()
		spec := aws.ENISpec{Subnet: "subnet-b", Token: "token-1"}
		e := must(c.CreateENI(ctx, spec))(t)
		if again := must(c.CreateENI(ctx, spec))(t); again.ID != e.ID {
			t.Errorf("the same token made %s and %s", e.ID, again.ID)
		}
		attachment := must(c.AttachENI(ctx, e.ID, node.ID, 0, 1))(t)
		small := must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-c"}))(t)
		tests := []struct {
			name string
			is   error
			call func() error
		}{
			{"token", aws.ErrTokenUsed, func() error {
				_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-b", Token: "token-1", Secondary: 1})
				return err
			}},
			{"ENI", aws.ErrENIFull, func() error { _, err := c.Assign(ctx, e.ID, 10); return err }},
			{"subnet", aws.ErrSubnetFull, func() error {
				_, err := c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-c", Secondary: 30})
				return err
			}},
			{"prefix", aws.ErrSubnetFull, func() error { _, err := c.AssignPrefixes(ctx, small.ID, 1); return err }},
			{"index", aws.ErrIndexTaken, func() error {
				_, err := c.AttachENI(ctx, small.ID, node.ID, 0, 1)
				return err
			}},
			{"attached", aws.ErrInUse, func() error { return c.DeleteENI(ctx, e.ID) }},
			{"instance", aws.ErrInstanceFull, func() error {
				return errors.Join(
					drop(c.AttachENI(ctx, small.ID, node.ID, 0, 2)),
					drop(c.AttachENI(ctx, must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-b"}))(t).ID,
						node.ID, 0, 3)))
			}},
			{"attachment", aws.ErrNotFound, func() error {
				return errors.Join(c.DetachENI(ctx, attachment), c.DetachENI(ctx, attachment))
			}},
			{"permission", aws.ErrDenied, func() error {
				sim.Fail("DeleteNetworkInterface", "UnauthorizedOperation", 1)
				return c.DeleteENI(ctx, e.ID)
			}},
		}
		for _, tt := range tests {
			if err := tt.call(); !errors.Is(err, tt.is) {
				t.Errorf("%s: got %v, want %v", tt.name, err, tt.is)
			}
		}
	})
}

func drop[T any](_ T, err error) error { return err }

func TestSubnets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c := world(t, "m5.large")
		equal(t, "subnets", must(c.Subnets(t.Context(), "vpc-1", "us-east-1a"))(t), []aws.Subnet{
			{ID: "subnet-a", VPC: "vpc-1", Zone: "us-east-1a", CIDR: netip.MustParsePrefix("10.0.0.0/24"), Free: 250,
				Default: true},
			{ID: "subnet-b", VPC: "vpc-1", Zone: "us-east-1a", CIDR: netip.MustParsePrefix("100.64.1.0/24"), Free: 251,
				Tags: map[string]string{"pods": "yes"}},
			{ID: "subnet-c", VPC: "vpc-1", Zone: "us-east-1a", CIDR: netip.MustParsePrefix("10.0.2.0/28"), Free: 11},
		})
	})
}

func TestCIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c := world(t, "m5.large")
		equal(t, "VPC", must(c.VPCCIDRs(t.Context(), "vpc-1"))(t), prefixes("10.0.0.0/16", "100.64.0.0/16"))
		equal(t, "peers", must(c.PeerCIDRs(t.Context(), "vpc-1"))(t),
			prefixes("10.7.0.0/16", "10.8.0.0/16", "10.9.0.0/16"))
		if _, err := c.VPCCIDRs(t.Context(), "vpc-0"); !errors.Is(err, aws.ErrNotFound) {
			t.Errorf("no VPC: %v, want ErrNotFound", err)
		}
	})
}

func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c := world(t, "m5.large")
		equal(t, "m5.large", must(c.Limits(t.Context(), "m5.large"))(t),
			aws.Limits{ENIs: 3, IPv4PerENI: 10, IPv6PerENI: 10, Cards: []int{3}, TCPEstablished: 432000})
		equal(t, "p4d", must(c.Limits(t.Context(), "p4d.24xlarge"))(t),
			aws.Limits{ENIs: 60, IPv4PerENI: 50, IPv6PerENI: 50, Cards: []int{15, 15, 15, 15}, TCPEstablished: 432000})
		if l := must(c.Limits(t.Context(), "c8gn.48xlarge"))(t); l.TCPEstablished != 350 {
			t.Errorf("c8gn tracks idle connections for %d s, want 350", l.TCPEstablished)
		}
		if _, err := c.Limits(t.Context(), "m5.tiny"); !errors.Is(err, aws.ErrNotFound) {
			t.Errorf("no type: %v, want ErrNotFound", err)
		}
	})
}
