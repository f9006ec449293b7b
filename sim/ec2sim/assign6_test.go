// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAssignIPv6 makes calls, and checks each answer. It also checks the final state of all ENIs except eni-1.
func TestAssignIPv6(t *testing.T) {
	const (
		six    = "CreateNetworkInterface SubnetId=subnet-six"
		assign = "AssignIpv6Addresses NetworkInterfaceId=eni-2 "
		away   = "UnassignIpv6Addresses NetworkInterfaceId=eni-2 "
	)
	for _, c := range []struct {
		name  string
		calls []string
		want  []string // the IPv6 addresses and prefixes of each answer
		enis  []string
	}{
		{"a count", []string{dual, assign + "Ipv6AddressCount=2"},
			[]string{"", "2001:db8:1:4::4 2001:db8:1:4::5"}, []string{"10.0.4.4 2001:db8:1:4::4 2001:db8:1:4::5"}},

		{"the freed address is not given again", []string{dual, assign + "Ipv6AddressCount=1",
			away + "Ipv6Addresses.1=2001:db8:1:4::4", assign + "Ipv6AddressCount=1"},
			[]string{"", "2001:db8:1:4::4", "2001:db8:1:4::4", "2001:db8:1:4::5"},
			[]string{"10.0.4.4 2001:db8:1:4::5"}},

		{"a list, whose answer leaves out what was there", []string{
			dual, assign + "Ipv6Addresses.1=2001:db8:1:4::5 Ipv6Addresses.2=2001:db8:1:4:7::1",
			assign + "Ipv6Addresses.1=2001:db8:1:4:7::1 Ipv6Addresses.2=2001:db8:1:4::9", assign + "Ipv6AddressCount=2",
		}, []string{"", "2001:db8:1:4::5 2001:db8:1:4:7::1", "2001:db8:1:4::9", "2001:db8:1:4::4 2001:db8:1:4::6"},
			[]string{"10.0.4.4 2001:db8:1:4::5 2001:db8:1:4:7::1 2001:db8:1:4::9 2001:db8:1:4::4 2001:db8:1:4::6"}},

		{"prefixes go around addresses", []string{
			dual, assign + "Ipv6Addresses.1=2001:db8:1:4:1::1", assign + "Ipv6PrefixCount=2",
			assign + "Ipv6Prefix.1=2001:db8:1:4:ab::/80",
			away + "Ipv6Prefix.1=2001:db8:1:4:2::/80 Ipv6Addresses.1=2001:db8:1:4:1::1",
		}, []string{"", "2001:db8:1:4:1::1", "2001:db8:1:4:2::/80 2001:db8:1:4:3::/80", "2001:db8:1:4:ab::/80",
			"2001:db8:1:4:1::1 2001:db8:1:4:2::/80"},
			[]string{"10.0.4.4 2001:db8:1:4:3::/80 2001:db8:1:4:ab::/80"}},

		{"created with both families", []string{
			dual + " SecondaryPrivateIpAddressCount=1 Ipv6AddressCount=2",
			dual + " Ipv4PrefixCount=1 Ipv6PrefixCount=1",
			dual + " PrivateIpAddress=10.0.4.77 Ipv6Addresses.1.Ipv6Address=2001:db8:1:4::77 " +
				"Ipv6Addresses.2.Ipv6Address=2001:db8:1:4::78",
			dual + " SecondaryPrivateIpAddressCount=1 Ipv6Prefix.1.Ipv6Prefix=2001:db8:1:4:9::/80",
		}, []string{"", "", "", ""}, []string{
			"10.0.4.4 10.0.4.5 2001:db8:1:4::4 2001:db8:1:4::5", "10.0.4.6 10.0.4.16/28 2001:db8:1:4:1::/80",
			"10.0.4.77 2001:db8:1:4::77 2001:db8:1:4::78", "10.0.4.32 10.0.4.33 2001:db8:1:4:9::/80",
		}},

		{"without IPv4 it has an address, or a prefix", []string{six, six + " Ipv6AddressCount=2",
			six + " Ipv6PrefixCount=1", six + " Ipv6AddressCount=0"},
			[]string{"", "", "", ""}, []string{"2001:db8:1:6::4", "2001:db8:1:6::5 2001:db8:1:6::6",
				"2001:db8:1:6:1::/80", "2001:db8:1:6::7"}},

		{"by default, unless it is overridden", []string{
			"CreateNetworkInterface SubnetId=subnet-auto",
			"CreateNetworkInterface SubnetId=subnet-auto Ipv6AddressCount=0",
			"CreateNetworkInterface SubnetId=subnet-auto Ipv6PrefixCount=1",
		}, []string{"", "", ""}, []string{"10.0.5.4 2001:db8:1:5::4", "10.0.5.5", "10.0.5.6 2001:db8:1:5:1::/80"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			with := world
			with.Subnets = append(with.Subnets[:len(with.Subnets):len(with.Subnets)], Subnet{
				ID: "subnet-auto", VPC: "vpc-1", Zone: "us-east-1a", CIDR: cidr("10.0.5.0/24"),
				IPv6CIDR: cidr("2001:db8:1:5::/64"), AssignIPv6: true,
			})
			sim, _ := start(t, with)
			for n, call := range c.calls {
				answer := must(t, sim, call)
				var got []string
				if !strings.HasPrefix(call, "Create") {
					got = answer.all("item")
				}
				if strings.Join(got, " ") != c.want[n] {
					t.Errorf("%s: got %v, want %s", call, got, c.want[n])
				}
			}
			var enis []string
			for _, e := range sim.ENIs()[1:] {
				all := append(texts(e.Addrs), texts(e.Prefixes)...)
				enis = append(enis, strings.Join(append(append(all, texts(e.IPv6Addrs)...),
					texts(e.IPv6Prefixes)...), " "))
			}
			if diff := cmp.Diff(c.enis, enis); diff != "" {
				t.Errorf("ENIs (-want +got):\n%s", diff)
			}
			check(t, sim)
		})
	}
}

// TestIPv6Changes: listeners get the changes of IPv6 addresses and prefixes. When EC2 deletes an ENI, its IPv6 blocks
// are free again.
func TestIPv6Changes(t *testing.T) {
	sim, _ := start(t, world)
	var got []string
	sim.OnChange(func(c Change) {
		got = append(got, strings.Join(append(texts(c.ENI.IPv6Addrs), texts(c.ENI.IPv6Prefixes)...), " "))
	})
	for _, call := range []string{
		dual + " Ipv6AddressCount=1",
		"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-2 DeviceIndex=1",
		"AssignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6PrefixCount=1",
		"UnassignIpv6Addresses NetworkInterfaceId=eni-2 Ipv6Addresses.1=2001:db8:1:4::4",
		"DetachNetworkInterface AttachmentId=eni-attach-2",
		"DeleteNetworkInterface NetworkInterfaceId=eni-2",
	} {
		must(t, sim, call)
	}
	want := []string{"2001:db8:1:4::4", "2001:db8:1:4::4 2001:db8:1:4:1::/80", "2001:db8:1:4:1::/80",
		"2001:db8:1:4:1::/80"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	check(t, sim)
}

// TestInstanceWithoutIPv4 checks how EC2 and the metadata show a boot ENI without IPv4.
func TestInstanceWithoutIPv4(t *testing.T) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "m5.large", Subnet: "subnet-six", IPv6: 2})
	described := must(t, sim, "DescribeNetworkInterfaces NetworkInterfaceId.1=eni-2")
	for name, want := range map[string]string{"privateIpAddress": "", "privateDnsName": "",
		"ipv6Address": "2001:db8:1:6::4 2001:db8:1:6::5", "ipv6Native": "true"} {
		if got := strings.Join(described.all(name), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for key, want := range map[string]string{
		"local-ipv4": "", "ipv6": "2001:db8:1:6::4", "hostname": i.ID + ".ec2.internal",
		"network/interfaces/macs/06:00:00:00:00:02/local-ipv4s":             "",
		"network/interfaces/macs/06:00:00:00:00:02/subnet-ipv4-cidr-block":  "",
		"network/interfaces/macs/06:00:00:00:00:02/ipv6s":                   "2001:db8:1:6::4\n2001:db8:1:6::5",
		"network/interfaces/macs/06:00:00:00:00:02/subnet-ipv6-cidr-blocks": "2001:db8:1:6::/64",
	} {
		code, got := get(t, i, "/latest/meta-data/"+key)
		if want == "" && code == 404 {
			continue
		}
		if code != 200 || got != want {
			t.Errorf("%s: got %d %q, want %q", key, code, got, want)
		}
	}
	if _, document := get(t, i, "/latest/dynamic/instance-identity/document"); strings.Contains(document, "privateIp") {
		t.Errorf("document: %s", document)
	}
}

// TestLaunchWithPrefixes: a launch can give the boot ENI its prefixes.
func TestLaunchWithPrefixes(t *testing.T) {
	sim, _ := start(t, world)
	i := run(t, sim, RunInstance{Type: "m5.large", Subnet: "subnet-dual", Prefixes: 2, IPv6Prefixes: 1})
	e := i.ENIs()[0]
	if got := strings.Join(append(texts(e.Prefixes), texts(e.IPv6Prefixes)...),
		" "); got != "10.0.4.16/28 10.0.4.32/28 2001:db8:1:4:1::/80" {
		t.Error(got)
	}
	for _, r := range []RunInstance{
		{Type: "m5.large", Subnet: "subnet-dual", Prefixes: 10},
		{Type: "m5.large", Subnet: "subnet-dual", IPv6Prefixes: 11},
		{Type: "m5.large", Subnet: "subnet-a", IPv6: 1},
	} {
		if _, err := sim.RunInstance(r); err == nil {
			t.Errorf("launched %+v", r)
		}
	}
	check(t, sim)
}
