// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// twoFamilies returns a VPC with three subnets: one with both families, one with IPv6 only, and one with IPv4 only. The
// VPC also has a peer, and a node in the first subnet.
func twoFamilies(t *testing.T) (*ec2sim.Sim, *ec2sim.Instance, *aws.Client) {
	t.Helper()
	return launched(t, ec2sim.World(`
		vpc-1     10.0.0.0/16 2001:db8:1::/56 -2001:db8:7::/56
		subnet-46 10.0.0.0/24 2001:db8:1:1::/64
		subnet-4  10.0.1.0/24
		subnet-6  2001:db8:1:6::/64
		vpc-2     10.9.0.0/16 2001:db8:9::/56
		vpc-3     10.8.0.0/16
		pcx-1     vpc-3 vpc-1
		pcx-2     vpc-1 vpc-2
		pcx-3     vpc-2 vpc-3`), ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-46", IPv6: 1})
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range texts {
		all = append(all, netip.MustParseAddr(s))
	}
	return all
}

// TestDualStackENI checks that one call creates an ENI with addresses of both families, and that EC2 and metadata show
// the same addresses.
func TestDualStackENI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, node, c := twoFamilies(t)
		ctx := t.Context()
		e := must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-46", Prefixes: 1, IPv6Prefixes: 1}))(t)
		equal(t, "created", [][]netip.Prefix{e.Prefixes, e.IPv6Prefixes},
			[][]netip.Prefix{prefixes("10.0.0.16/28"), prefixes("2001:db8:1:1:1::/80")})
		if calls := sim.Calls(); len(calls) != 1 {
			t.Errorf("calls: %v", calls)
		}
		must(c.AttachENI(ctx, e.ID, node.ID, 0, 1))(t)
		equal(t, "addresses", must(c.AssignIPv6(ctx, e.ID, 2))(t), addrs("2001:db8:1:1::5", "2001:db8:1:1::6"))
		equal(t, "prefixes", must(c.AssignIPv6Prefixes(ctx, e.ID, 2))(t),
			prefixes("2001:db8:1:1:2::/80", "2001:db8:1:1:3::/80"))
		if err := c.UnassignIPv6(ctx, e.ID, addrs("2001:db8:1:1::5"), prefixes("2001:db8:1:1:2::/80")); err != nil {
			t.Fatal(err)
		}
		if err := c.UnassignIPv6(ctx, e.ID, nil, nil); err != nil {
			t.Error(err)
		}
		described := must(c.DescribeENIs(ctx, aws.ByID(e.ID)))(t)[0]
		seen := must(c.ENIs(ctx))(t)[1]
		for name, got := range map[string]aws.ENI{"EC2": described, "metadata": seen} {
			equal(t, name+" addresses", got.IPv6Addrs, addrs("2001:db8:1:1::6"))
			equal(t, name+" prefixes", got.IPv6Prefixes, prefixes("2001:db8:1:1:1::/80", "2001:db8:1:1:3::/80"))
		}
		equal(t, "CIDRs", append(seen.VPCIPv6CIDRs, seen.IPv6CIDR), prefixes("2001:db8:1::/56", "2001:db8:1:1::/64"))
	})
}

// TestENIWithoutIPv4: an ENI without IPv4 has no primary address, neither in EC2 nor in metadata.
func TestENIWithoutIPv4(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, node, c := twoFamilies(t)
		ctx := t.Context()
		e := must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-6", IPv6: 2}))(t)
		must(c.AttachENI(ctx, e.ID, node.ID, 0, 1))(t)
		seen := must(c.ENIs(ctx))(t)
		if len(seen) != 2 {
			t.Fatalf("metadata: %+v", seen)
		}
		for name, got := range map[string]aws.ENI{"created": e, "EC2": must(c.DescribeENIs(ctx, aws.ByID(e.ID)))(t)[0],
			"metadata": seen[1]} {
			equal(t, name, got.IPv6Addrs, addrs("2001:db8:1:6::4", "2001:db8:1:6::5"))
			if got.Addrs != nil || got.CIDR.IsValid() {
				t.Errorf("%s: %v of %s", name, got.Addrs, got.CIDR)
			}
		}
	})
}

// TestIPv6Refusals: an ENI has a separate limit of IPv6 addresses, and a subnet may have no IPv6.
func TestIPv6Refusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, node, c := twoFamilies(t)
		ctx := t.Context()
		boot := node.ENIs()[0].ID
		if _, err := c.AssignIPv6(ctx, boot, 10); !errors.Is(err, aws.ErrENIFull) {
			t.Errorf("more than 10: %v, want ErrENIFull", err)
		}
		if _, err := c.Assign(ctx, boot, 9); err != nil {
			t.Errorf("all of IPv4, beside one of IPv6: %v", err)
		}
		if _, err := c.AssignIPv6Prefixes(ctx, boot, 9); err != nil {
			t.Errorf("all of IPv6: %v", err)
		}
		e := must(c.CreateENI(ctx, aws.ENISpec{Subnet: "subnet-4"}))(t)
		if err := drop(c.AssignIPv6(ctx, e.ID, 1)); err == nil || errors.Is(err, aws.ErrENIFull) {
			t.Errorf("no IPv6 in the subnet: %v", err)
		}
		if err := c.UnassignIPv6(ctx, "eni-00000000000000000", addrs("2001:db8::1"), nil); !errors.Is(err,
			aws.ErrNotFound) {
			t.Errorf("no ENI: %v, want ErrNotFound", err)
		}
	})
}

func TestIPv6CIDRs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, c := twoFamilies(t)
		ctx := t.Context()
		equal(t, "VPC", must(c.VPC(ctx, "vpc-1"))(t), aws.VPC{ID: "vpc-1", CIDRs: prefixes("10.0.0.0/16"),
			IPv6CIDRs: prefixes("2001:db8:1::/56")})
		equal(t, "peers", must(c.Peers(ctx, "vpc-1"))(t), []aws.VPC{
			{ID: "vpc-2", CIDRs: prefixes("10.9.0.0/16"), IPv6CIDRs: prefixes("2001:db8:9::/56")},
			{ID: "vpc-3", CIDRs: prefixes("10.8.0.0/16")},
		})
		equal(t, "IPv4 alone", must(c.PeerCIDRs(ctx, "vpc-1"))(t), prefixes("10.8.0.0/16", "10.9.0.0/16"))
		equal(t, "subnets", must(c.Subnets(ctx, "vpc-1", "us-east-1a"))(t), []aws.Subnet{
			{ID: "subnet-4", VPC: "vpc-1", Zone: "us-east-1a", CIDR: netip.MustParsePrefix("10.0.1.0/24"), Free: 251},
			{ID: "subnet-46", VPC: "vpc-1", Zone: "us-east-1a", CIDR: netip.MustParsePrefix("10.0.0.0/24"),
				IPv6CIDR: netip.MustParsePrefix("2001:db8:1:1::/64"), Free: 250},
			{ID: "subnet-6", VPC: "vpc-1", Zone: "us-east-1a", IPv6CIDR: netip.MustParsePrefix("2001:db8:1:6::/64")},
		})
	})
}
