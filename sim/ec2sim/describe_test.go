// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestFilters asks with one filter or several, and expects these IDs.
func TestFilters(t *testing.T) {
	sim, _ := start(t, world)
	must(t, sim, "CreateNetworkInterface SubnetId=subnet-b Description=CNI-ENI SecurityGroupId.1=sg-1 "+
		"SecondaryPrivateIpAddressCount=1"+
		" TagSpecification.1.ResourceType=network-interface TagSpecification.1.Tag.1.Key=pool "+
		"TagSpecification.1.Tag.1.Value=pods")
	must(t, sim, "CreateNetworkInterface SubnetId=subnet-c Description=other SecurityGroupId.1=sg-2")
	must(t, sim, "CreateNetworkInterface SubnetId=subnet-six")
	must(t, sim, "AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1")
	for _, c := range []struct{ action, filters, want string }{
		{"DescribeNetworkInterfaces", "", "eni-1 eni-2 eni-3 eni-4"},
		{"DescribeNetworkInterfaces", "ipv6-addresses.ipv6-address=2001:db8:1:6::4", "eni-4"},
		{"DescribeNetworkInterfaces", "attachment.instance-id=i-1", "eni-1 eni-2"},
		{"DescribeNetworkInterfaces", "attachment.instance-id=i-1 attachment.device-index=1", "eni-2"},
		{"DescribeNetworkInterfaces", "attachment.attachment-id=eni-attach-2", "eni-2"},
		{"DescribeNetworkInterfaces", "attachment.status=attached", "eni-1 eni-2"},
		{"DescribeNetworkInterfaces", "attachment.delete-on-termination=false", "eni-2"},
		{"DescribeNetworkInterfaces", "status=available", "eni-3 eni-4"},
		{"DescribeNetworkInterfaces", "status=available,in-use", "eni-1 eni-2 eni-3 eni-4"},
		{"DescribeNetworkInterfaces", "tag:pool=pods", "eni-2"},
		{"DescribeNetworkInterfaces", "tag:pool=p*s", "eni-2"},
		{"DescribeNetworkInterfaces", "tag:pool=p?s", ""},
		{"DescribeNetworkInterfaces", "tag:other=pods", ""},
		{"DescribeNetworkInterfaces", "tag-key=pool", "eni-2"},
		{"DescribeNetworkInterfaces", "description=CNI-*", "eni-2"},
		{"DescribeNetworkInterfaces", "subnet-id=subnet-c", "eni-3"},
		{"DescribeNetworkInterfaces", "vpc-id=vpc-2", ""},
		{"DescribeNetworkInterfaces", "group-id=sg-2", "eni-3"},
		{"DescribeNetworkInterfaces", "mac-address=06:00:00:00:00:02", "eni-2"},
		{"DescribeNetworkInterfaces", "network-interface-id=eni-3", "eni-3"},
		{"DescribeNetworkInterfaces", "private-ip-address=10.0.1.5", "eni-2"},
		{"DescribeNetworkInterfaces", "addresses.private-ip-address=10.0.0.4", "eni-1"},
		{"DescribeNetworkInterfaces", "association.public-ip=198.18.0.*", "eni-1"},
		{"DescribeNetworkInterfaces", "availability-zone=us-east-1b", "eni-3"},
		{"DescribeNetworkInterfaces", "interface-type=interface requester-managed=false source-dest-check=true",
			"eni-1 eni-2 eni-3 eni-4"},

		{"DescribeSubnets", "vpc-id=vpc-1 availabilityZone=us-east-1a",
			"subnet-a subnet-b subnet-big subnet-dual subnet-six subnet-tiny"},
		{"DescribeSubnets", "ipv6-native=true", "subnet-six"},
		{"DescribeSubnets", "ipv6-cidr-block-association.ipv6-cidr-block=2001:db8:1:*::/64", "subnet-dual subnet-six"},
		{"DescribeSubnets", "availability-zone=us-east-1b", "subnet-c"},
		{"DescribeSubnets", "tag:role=pods", "subnet-b"},
		{"DescribeSubnets", "available-ip-address-count=11", "subnet-tiny"},
		{"DescribeSubnets", "cidr=10.0.1.0/24", "subnet-b"},
		{"DescribeSubnets", "cidr-block=10.0.1.0/24 cidrBlock=10.0.1.0/24", "subnet-b"},
		{"DescribeSubnets", "default-for-az=true defaultForAz=true", "subnet-v2"},
		{"DescribeSubnets", "map-public-ip-on-launch=true state=available", "subnet-a"},
		{"DescribeSubnets", "subnet-id=subnet-t*", "subnet-tiny"},

		{"DescribeVpcs", "is-default=true", "vpc-2"},
		{"DescribeVpcs", "cidr=10.0.0.0/16 state=available", "vpc-1"},
		{"DescribeVpcs", "cidr=100.64.0.0/16", ""},
		{"DescribeVpcs", "cidr-block-association.cidr-block=100.64.0.0/16", "vpc-1"},
		{"DescribeVpcs", "ipv6-cidr-block-association.ipv6-cidr-block=2001:db8:1::/56", "vpc-1"},
		{"DescribeVpcs", "ipv6-cidr-block-association.ipv6-cidr-block=10.0.0.0/16", ""},
		{"DescribeVpcs", "tag:Name=one", "vpc-1"},
		{"DescribeVpcs", "vpc-id=vpc-1,vpc-2", "vpc-1 vpc-2"},

		{"DescribeVpcPeeringConnections", "status-code=active", "pcx-1"},
		{"DescribeVpcPeeringConnections", "requester-vpc-info.vpc-id=vpc-1", "pcx-1"},
		{"DescribeVpcPeeringConnections", "accepter-vpc-info.vpc-id=vpc-1", "pcx-2"},
		{"DescribeVpcPeeringConnections", "accepter-vpc-info.owner-id=210987654321", "pcx-1"},
		{"DescribeVpcPeeringConnections", "requester-vpc-info.owner-id=123456789012", "pcx-1 pcx-2"},
		{"DescribeVpcPeeringConnections", "accepter-vpc-info.cidr-block=10.9.0.0/16", "pcx-1"},
		{"DescribeVpcPeeringConnections", "requester-vpc-info.cidr-block=100.64.0.0/16", "pcx-1"},
		{"DescribeVpcPeeringConnections", "vpc-peering-connection-id=pcx-2 tag:old=yes", "pcx-2"},

		{"DescribeInstanceTypes", "instance-type=c5*", "c5.4xlarge c5.large c5n.18xlarge"},
		{"DescribeInstanceTypes", "network-info.maximum-network-cards=32 hypervisor=nitro", "p5.48xlarge"},
		{"DescribeInstanceTypes", "network-info.maximum-network-interfaces=3 " +
			"network-info.ipv4-addresses-per-interface=4 network-info.ipv6-supported=true", "t3.small"},
		{"DescribeInstanceTypes", "network-info.ipv6-addresses-per-interface=6", "t3.medium"},
	} {
		answer := must(t, sim, c.action+" "+filterParams(c.filters))
		if got, want := strings.Join(ids(c.action, answer), " "), long(c.want); got != want {
			t.Errorf("%s %s: got %q, want %q", c.action, c.filters, got, want)
		}
	}
}

// filterParams turns "a=1,2 b=3" into Filter.1.Name=a Filter.1.Value.1=1 and so on.
func filterParams(filters string) (params string) {
	for i, f := range strings.Fields(filters) {
		name, values, _ := strings.Cut(f, "=")
		params += fmt.Sprintf(" Filter.%d.Name=%s", i+1, name)
		for j, v := range strings.Split(values, ",") {
			params += fmt.Sprintf(" Filter.%d.Value.%d=%s", i+1, j+1, v)
		}
	}
	return params
}

// ids returns the IDs of the described things: the first element of each item of the
// outermost set.
func ids(action string, answer element) (found []string) {
	for _, outer := range answer.Elements {
		for _, item := range outer.Elements {
			name := map[string]string{
				"DescribeNetworkInterfaces":     "networkInterfaceId",
				"DescribeSubnets":               "subnetId",
				"DescribeVpcs":                  "vpcId",
				"DescribeVpcPeeringConnections": "vpcPeeringConnectionId",
				"DescribeInstanceTypes":         "instanceType",
			}[action]
			found = append(found, item.all(name)...)
		}
	}
	return found
}

// TestPages reads 23 ENIs in pages of 5, while ENIs of earlier pages appear and disappear.
func TestPages(t *testing.T) {
	sim, _ := start(t, world)
	for range 22 {
		must(t, sim, "CreateNetworkInterface SubnetId=subnet-b")
	}
	var all, want []string
	for n := range 23 {
		want = append(want, long(fmt.Sprintf("eni-%x", n+1)))
	}
	token, pages := "", 0
	for {
		call := "DescribeNetworkInterfaces MaxResults=5"
		if token != "" {
			call += " NextToken=" + token
		}
		answer := must(t, sim, call)
		page := ids("DescribeNetworkInterfaces", answer)
		all, pages = append(all, page...), pages+1
		if len(page) > 5 {
			t.Errorf("a page of %d", len(page))
		}
		must(t, sim, "DeleteNetworkInterface NetworkInterfaceId="+page[len(page)-1])
		next := answer.all("nextToken")
		if len(next) == 0 {
			break
		}
		token = next[0]
		if pages == 1 {
			must(t, sim, "CreateNetworkInterface SubnetId=subnet-b")
			want = append(want, long("eni-18"))
		}
	}
	if diff := cmp.Diff(want, all); diff != "" || pages != 5 {
		t.Errorf("%d pages (-want +got):\n%s", pages, diff)
	}
}

func TestPageSizes(t *testing.T) {
	c := world
	for n := range 120 {
		c.InstanceTypes = append(c.InstanceTypes, InstanceType{Name: fmt.Sprintf("x9.%dxlarge", n), ENIs: 2,
			IPv4PerENI: 2, Xen: true})
	}
	sim, _ := start(t, c)
	for call, want := range map[string]int{
		"DescribeInstanceTypes":                 100,
		"DescribeInstanceTypes MaxResults=1000": 100,
		"DescribeInstanceTypes MaxResults=7":    7,
		"DescribeSubnets":                       len(world.Subnets),
		"DescribeSubnets MaxResults=5":          5,
	} {
		action, _, _ := strings.Cut(call, " ")
		if got := len(ids(action, must(t, sim, call))); got != want {
			t.Errorf("%s: %d, want %d", call, got, want)
		}
	}
}

// TestInactivePeering: EC2 hides the CIDRs of a peering that is not active.
func TestInactivePeering(t *testing.T) {
	sim, _ := start(t, world)
	answer := must(t, sim, "DescribeVpcPeeringConnections VpcPeeringConnectionId.1=pcx-2")
	if got := answer.all("cidrBlock"); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestLike(t *testing.T) {
	for _, c := range []struct {
		pattern, value string
		want           bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"**", "abc", true},
		{"a*", "abc", true},
		{"*c", "abc", true},
		{"a*b*c", "axxbyyc", true},
		{"a*b*c", "axxbyy", false},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{`a\*c`, "a*c", true},
		{`a\*c`, "abc", false},
		{`\?`, "?", true},
		{"abc", "ABC", false},
		{strings.Repeat("*a", 40), strings.Repeat("a", 39) + "b", false},
	} {
		if got := like(c.pattern, c.value); got != c.want {
			t.Errorf("like(%q, %q) = %v", c.pattern, c.value, got)
		}
	}
}

// TestRepeatedIDs: if a request has an ID twice, the thing is described once.
func TestRepeatedIDs(t *testing.T) {
	sim, _ := start(t, world)
	got := ids("DescribeSubnets",
		must(t, sim, "DescribeSubnets SubnetId.1=subnet-b SubnetId.2=subnet-a SubnetId.3=subnet-b"))
	if !slices.Equal(got, []string{"subnet-a", "subnet-b"}) {
		t.Error(got)
	}
}
