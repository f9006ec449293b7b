// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"net/netip"
	"net/url"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestDecode(t *testing.T) {
	var got createNetworkInterfaceInput
	err := form{
		"Action":                                "CreateNetworkInterface",
		"SubnetId":                              "subnet-1",
		"SecurityGroupId.2":                     "sg-2",
		"SecurityGroupId.10":                    "sg-10",
		"SecurityGroupId.1":                     "sg-1",
		"PrivateIpAddresses.1.PrivateIpAddress": "10.0.0.5",
		"PrivateIpAddresses.1.Primary":          "true",
		"TagSpecification.1.ResourceType":       "network-interface",
		"TagSpecification.1.Tag.1.Key":          "a",
		"TagSpecification.1.Tag.1.Value":        "1",
		"TagSpecification.1.Tag.2.Key":          "b",
		"TagSpecification.1.Tag.2.Value":        "",
	}.decode(&got)
	want := createNetworkInterfaceInput{
		SubnetID:           "subnet-1",
		SecurityGroupIDs:   []string{"sg-1", "sg-2", "sg-10"},
		PrivateIPAddresses: []addressRequest{{netip.MustParseAddr("10.0.0.5"), true}},
		TagSpecifications:  []tagSpecification{{"network-interface", []tag{{"a", "1"}, {"b", ""}}}},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// FuzzDecode: no query makes dispatch panic, and every error of dispatch is a refusal.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		"Action=CreateNetworkInterface&SubnetId=subnet-1&SecurityGroupId.1=sg-1&PrivateIpAddresses.1.Primary=true",
		"Action=DescribeSubnets&Filter.1.Name=vpc-id&Filter.1.Value.1=vpc-1&MaxResults=5",
		"Action=ModifyNetworkInterfaceAttribute&NetworkInterfaceId=eni-1&Attachment.DeleteOnTermination=true",
		"Action=AssignPrivateIpAddresses&NetworkInterfaceId=eni-1&Ipv4Prefix.1=10.0.0.0/28",
		"Action=AssignIpv6Addresses&NetworkInterfaceId=eni-1&Ipv6Addresses.1=::ffff:10.0.0.1&" +
			"Ipv6Prefix.1=2001:db8::/80",
		"Action=CreateNetworkInterface&SubnetId=subnet-six&Ipv6Addresses.1.Ipv6Address=2001:db8:1:6::9&" +
			"Ipv6PrefixCount=1&DryRun=true",
		"Action=CreateTags&ResourceId.1=eni-1&Tag.1.Key=a&Tag.1.Value=b&Tag.-1=x&Tag.99999999999999999999.Key=y",
	} {
		f.Add(seed)
	}
	sim, err := New(world)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		parameters := form{}
		for name := range values {
			parameters[name] = values.Get(name)
		}
		_, err = sim.dispatch(parameters)
		if _, ok := err.(*refusal); err != nil && !ok {
			t.Errorf("%q: %v", query, err)
		}
	})
}
