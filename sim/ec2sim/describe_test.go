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

// TestFilters makes Describe calls with filters, and checks the IDs in the answers.
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
		{"DescribeNetworkInterfaces", "attachment.instance-id=i-1", "eni-1 eni-2"},
		{"DescribeNetworkInterfaces", "status=available", "eni-3 eni-4"},
		{"DescribeNetworkInterfaces", "status=available,in-use", "eni-1 eni-2 eni-3 eni-4"},
		{"DescribeNetworkInterfaces", "tag:pool=pods", "eni-2"},
		{"DescribeNetworkInterfaces", "tag:pool=p*s", "eni-2"},
		{"DescribeNetworkInterfaces", "tag:pool=p?s", ""},
		{"DescribeNetworkInterfaces", "tag:other=pods", ""},
		{"DescribeNetworkInterfaces", "tag-key=pool", "eni-2"},
		{"DescribeNetworkInterfaces", "description=CNI-*", "eni-2"},
		{"DescribeNetworkInterfaces", "subnet-id=subnet-c", "eni-3"},
		{"DescribeNetworkInterfaces", "network-interface-id=eni-3", "eni-3"},

		{"DescribeSubnets", "vpc-id=vpc-1 availability-zone=us-east-1a",
			"subnet-a subnet-b subnet-big subnet-dual subnet-six subnet-tiny"},
		{"DescribeSubnets", "availability-zone=us-east-1b", "subnet-c"},
		{"DescribeSubnets", "tag:role=pods", "subnet-b"},
		{"DescribeSubnets", "default-for-az=true", "subnet-v2"},

		{"DescribeVpcs", "tag:Name=one", "vpc-1"},

		{"DescribeVpcPeeringConnections", "status-code=active", "pcx-1"},
		{"DescribeVpcPeeringConnections", "tag:old=yes", "pcx-2"},
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

// ids returns the IDs of the resources in an answer. Each item of the answer's outermost set is a resource.
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

// TestPages reads 23 ENIs in pages of 5, while EC2 deletes ENIs of earlier pages. After the first page, EC2 also
// creates one more ENI.
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
		if got := matchesPattern(c.pattern, c.value); got != c.want {
			t.Errorf("like(%q, %q) = %v", c.pattern, c.value, got)
		}
	}
}

// TestRepeatedIDs: an answer has each subnet once, even if the request has the subnet's ID twice.
func TestRepeatedIDs(t *testing.T) {
	sim, _ := start(t, world)
	got := ids("DescribeSubnets",
		must(t, sim, "DescribeSubnets SubnetId.1=subnet-b SubnetId.2=subnet-a SubnetId.3=subnet-b"))
	if !slices.Equal(got, []string{"subnet-a", "subnet-b"}) {
		t.Error(got)
	}
}
