// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// TestPages: EC2 answers in pages. The Client asks for 1000 objects a page, and a page may be empty. An empty token
// shows that a page is the last one.
func TestPages(t *testing.T) {
	pages := func(set string, items ...string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.ParseForm()
			if got := r.Form.Get("MaxResults"); got != "1000" {
				t.Errorf("MaxResults=%s, want 1000", got)
			}
			var page int
			fmt.Sscan(r.Form.Get("NextToken"), &page)
			next := fmt.Sprintf("<nextToken>%d</nextToken>", page+1)
			if page == len(items)-1 {
				next = "<nextToken></nextToken>"
			}
			answer(w, r.Form.Get("Action"), fmt.Sprintf("<%[1]s>%[2]s</%[1]s>%[3]s", set, items[page], next))
		})
	}
	inBubble(t, "ENIs", func(t *testing.T) {
		c := client(pages("networkInterfaceSet",
			"<item><networkInterfaceId>eni-1</networkInterfaceId></item>", "",
			"<item><networkInterfaceId>eni-2</networkInterfaceId></item>"), tree{})
		equal(t, "ENIs", must(c.DescribeENIs(t.Context()))(t), []aws.ENI{{ID: "eni-1", Index: aws.UnknownIndex},
			{ID: "eni-2", Index: aws.UnknownIndex}})
	})
	inBubble(t, "subnets", func(t *testing.T) {
		c := client(pages("subnetSet",
			"<item><subnetId>subnet-1</subnetId><availableIpAddressCount>1</availableIpAddressCount></item>",
			"<item><subnetId>subnet-2</subnetId><availableIpAddressCount>2</availableIpAddressCount></item>"), tree{})
		equal(t, "subnets", must(c.Subnets(t.Context(), "vpc-1", "us-east-1a"))(t),
			[]aws.Subnet{{ID: "subnet-1", Free: 1}, {ID: "subnet-2", Free: 2}})
	})
	t.Run("peerings without a set of CIDRs", func(t *testing.T) {
		peering := `<item><requesterVpcInfo><vpcId>vpc-1</vpcId></requesterVpcInfo><accepterVpcInfo><vpcId>vpc-2</vpcId>%s</accepterVpcInfo></item>`
		c := client(pages("vpcPeeringConnectionSet", fmt.Sprintf(peering, "<cidrBlock>10.9.0.0/16</cidrBlock>"),
			fmt.Sprintf(peering,
				"<cidrBlock>10.8.0.0/16</cidrBlock><cidrBlockSet>"+
					"<item><cidrBlock>10.7.0.0/16</cidrBlock></item>"+
					"<item><cidrBlock>10.8.0.0/16</cidrBlock></item></cidrBlockSet>"), ""), tree{})
		equal(t, "peers", must(c.PeerCIDRs(t.Context(), "vpc-1"))(t),
			prefixes("10.7.0.0/16", "10.8.0.0/16", "10.9.0.0/16"))
	})
	inBubble(t, "peerings", func(t *testing.T) {
		peering := `<item><requesterVpcInfo><vpcId>vpc-1</vpcId></requesterVpcInfo><accepterVpcInfo><vpcId>vpc-2</vpcId><cidrBlockSet><item><cidrBlock>%s</cidrBlock></item></cidrBlockSet></accepterVpcInfo></item>`
		c := client(pages("vpcPeeringConnectionSet", fmt.Sprintf(peering, "10.9.0.0/16"),
			fmt.Sprintf(peering, "10.8.0.0/16"), "<item></item>"), tree{})
		equal(t, "peers", must(c.PeerCIDRs(t.Context(), "vpc-1"))(t), prefixes("10.8.0.0/16", "10.9.0.0/16"))
	})
}

// TestWholeENI checks an ENI with addresses of both families. The primary address may be at any position of the list.
func TestWholeENI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer(w, "DescribeNetworkInterfaces", `<networkInterfaceSet><item>
			<networkInterfaceId>eni-1</networkInterfaceId><macAddress>0a:00:00:00:00:01</macAddress><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId><status>in-use</status>
			<attachment><attachmentId>eni-attach-1</attachmentId><instanceId>i-1</instanceId><deviceIndex>1</deviceIndex><networkCardIndex>2</networkCardIndex><deleteOnTermination>true</deleteOnTermination></attachment>
			<privateIpAddressesSet>
				<item><privateIpAddress>10.0.0.11</privateIpAddress><primary>false</primary></item>
				<item><privateIpAddress>10.0.0.10</privateIpAddress><primary>true</primary></item>
			</privateIpAddressesSet>
			<ipv4PrefixSet><item><ipv4Prefix>10.0.0.16/28</ipv4Prefix></item></ipv4PrefixSet>
			<ipv6AddressesSet><item><ipv6Address>2600:1f18:1:a::10</ipv6Address></item></ipv6AddressesSet>
			<ipv6PrefixSet><item><ipv6Prefix>2600:1f18:1:a:1::/80</ipv6Prefix></item></ipv6PrefixSet>
		</item></networkInterfaceSet>`)
		}), tree{})
		addr := netip.MustParseAddr
		equal(t, "ENI", must(c.DescribeENIs(t.Context()))(t), []aws.ENI{{
			ID: "eni-1", MAC: "0a:00:00:00:00:01", Index: 1, Card: 2, Subnet: "subnet-1", VPC: "vpc-1",
			Addrs: []netip.Addr{addr("10.0.0.10"), addr("10.0.0.11")}, Prefixes: prefixes("10.0.0.16/28"),
			IPv6Addrs: []netip.Addr{addr("2600:1f18:1:a::10")}, IPv6Prefixes: prefixes("2600:1f18:1:a:1::/80"),
			Status: "in-use", Instance: "i-1", Attachment: "eni-attach-1", DeleteOnTermination: true,
		}})
	})
}

// TestDualStackSubnet: EC2 still lists the former IPv6 CIDRs of a subnet. A subnet may also have no IPv4.
func TestDualStackSubnet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const association = `<item><ipv6CidrBlock>%s</ipv6CidrBlock><ipv6CidrBlockState><state>%s</state></ipv6CidrBlockState></item>`
		c := client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answer(w, "DescribeSubnets", `<subnetSet><item><subnetId>subnet-1</subnetId><ipv6CidrBlockAssociationSet>`+
				fmt.Sprintf(association, "2600:1f18:1:a::/64", "associated")+fmt.Sprintf(association,
				"2600:1f18:1:b::/64", "disassociated")+
				`</ipv6CidrBlockAssociationSet></item></subnetSet>`)
		}), tree{})
		equal(t, "subnets", must(c.Subnets(t.Context(), "vpc-1", "us-east-1a"))(t),
			[]aws.Subnet{{ID: "subnet-1", IPv6CIDR: netip.MustParsePrefix("2600:1f18:1:a::/64")}})
	})
}

// TestNonsense: if an answer cannot be parsed, the Client returns an error that names the action.
func TestNonsense(t *testing.T) {
	tests := []struct {
		action, body string
		call         func(context.Context, *aws.Client) error
	}{
		{"AssignPrivateIpAddresses",
			`<assignedPrivateIpAddressesSet><item><privateIpAddress>10.0.0</privateIpAddress></item></assignedPrivateIpAddressesSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.Assign(ctx, "eni-1", 1)) }},
		{"AssignPrivateIpAddresses",
			`<assignedIpv4PrefixSet><item><ipv4Prefix>fd00::/80</ipv4Prefix></item></assignedIpv4PrefixSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.AssignPrefixes(ctx, "eni-1", 1)) }},
		{"CreateNetworkInterface", ``,
			func(ctx context.Context, c *aws.Client) error { return drop(c.CreateENI(ctx, aws.ENISpec{})) }},
		{"CreateNetworkInterface",
			`<networkInterface><ipv6AddressesSet><item><ipv6Address>10.0.0.9</ipv6Address></item></ipv6AddressesSet></networkInterface>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.CreateENI(ctx, aws.ENISpec{})) }},
		{"DescribeNetworkInterfaces",
			`<networkInterfaceSet><item><privateIpAddressesSet><item></item></privateIpAddressesSet></item></networkInterfaceSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.DescribeENIs(ctx)) }},
		{"DescribeSubnets", `<subnetSet><item><cidrBlock>10.0.0.0</cidrBlock></item></subnetSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.Subnets(ctx, "vpc-1", "us-east-1a")) }},
		{"DescribeVpcs", `<vpcSet><item></item></vpcSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.VPCCIDRs(ctx, "vpc-1")) }},
		{"DescribeVpcs", ``,
			func(ctx context.Context, c *aws.Client) error { return drop(c.VPCCIDRs(ctx, "vpc-1")) }},
		{"DescribeVpcPeeringConnections",
			`<vpcPeeringConnectionSet><item><requesterVpcInfo><vpcId>vpc-2</vpcId><cidrBlockSet><item></item></cidrBlockSet></requesterVpcInfo><accepterVpcInfo><vpcId>vpc-1</vpcId></accepterVpcInfo></item></vpcPeeringConnectionSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.PeerCIDRs(ctx, "vpc-1")) }},
		{"AssignIpv6Addresses", `<assignedIpv6Addresses><item>10.0.0.9</item></assignedIpv6Addresses>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.AssignIPv6(ctx, "eni-1", 1)) }},
		{"AssignIpv6Addresses", `<assignedIpv6PrefixSet><item>10.0.0.16/28</item></assignedIpv6PrefixSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.AssignIPv6Prefixes(ctx, "eni-1", 1)) }},
		{"DescribeVpcs",
			`<vpcSet><item><cidrBlock>10.0.0.0/16</cidrBlock><ipv6CidrBlockAssociationSet><item><ipv6CidrBlock>10.0.0.0/16</ipv6CidrBlock><ipv6CidrBlockState><state>associated</state></ipv6CidrBlockState></item></ipv6CidrBlockAssociationSet></item></vpcSet>`,
			func(ctx context.Context, c *aws.Client) error { return drop(c.VPC(ctx, "vpc-1")) }},
		{"DescribeInstanceTypes", ``,
			func(ctx context.Context, c *aws.Client) error { return drop(c.Limits(ctx, "m5.large")) }},
	}
	for _, tt := range tests {
		inBubble(t, tt.action, func(t *testing.T) {
			err := tt.call(t.Context(), client(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer(w, tt.action, tt.body)
			}), tree{}))
			if e, ok := errors.AsType[*aws.Error](err); !ok || e.Action != tt.action || e.Code != "" ||
				errors.Is(err, aws.ErrTransient) {
				t.Errorf("got %v, want an error of %s", err, tt.action)
			}
		})
	}
}
