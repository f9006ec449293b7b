// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAssign makes calls, and checks each answer and the final state of the ENIs.
func TestAssign(t *testing.T) {
	for _, c := range []struct {
		name  string
		calls []string
		want  []string // the addresses and prefixes of each answer
		enis  []string
	}{
		{"a count", []string{
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=2",
		}, []string{"10.0.0.5 10.0.0.6"}, []string{"10.0.0.4 10.0.0.5 10.0.0.6"}},

		{"the freed address is given last", []string{
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.5",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
		}, []string{"10.0.0.5", "", "10.0.0.6"}, []string{"10.0.0.4 10.0.0.6"}},

		{"a list", []string{
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.9 PrivateIpAddress.2=10.0.0.5",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
		}, []string{"10.0.0.9 10.0.0.5", "10.0.0.6"}, []string{"10.0.0.4 10.0.0.9 10.0.0.5 10.0.0.6"}},

		{"a list is idempotent", []string{
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.9",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.9 PrivateIpAddress.2=10.0.0.8",
		}, []string{"10.0.0.9", "10.0.0.9 10.0.0.8"}, []string{"10.0.0.4 10.0.0.9 10.0.0.8"}},

		{"an address moves", []string{
			"CreateNetworkInterface SubnetId=subnet-a SecondaryPrivateIpAddressCount=2",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 PrivateIpAddress.1=10.0.0.6 AllowReassignment=true",
		}, []string{"", "10.0.0.6"}, []string{"10.0.0.4 10.0.0.6", "10.0.0.5 10.0.0.7"}},

		{"prefixes are aligned, and addresses go on behind them", []string{
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4PrefixCount=2",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 SecondaryPrivateIpAddressCount=1",
			"AssignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.224/28",
			"UnassignPrivateIpAddresses NetworkInterfaceId=eni-1 Ipv4Prefix.1=10.0.0.16/28 " +
				"PrivateIpAddress.1=10.0.0.48",
		}, []string{"10.0.0.16/28 10.0.0.32/28", "10.0.0.48", "10.0.0.224/28", ""},
			[]string{"10.0.0.4 10.0.0.32/28 10.0.0.224/28"}},

		{"created with a list", []string{
			"CreateNetworkInterface SubnetId=subnet-a PrivateIpAddresses.1.PrivateIpAddress=10.0.0.9 " +
				"PrivateIpAddresses.2.PrivateIpAddress=10.0.0.8 PrivateIpAddresses.2.Primary=true",
			"CreateNetworkInterface SubnetId=subnet-a PrivateIpAddresses.1.PrivateIpAddress=10.0.0.5",
			"CreateNetworkInterface SubnetId=subnet-a PrivateIpAddress=10.0.0.100 SecondaryPrivateIpAddressCount=1",
			"CreateNetworkInterface SubnetId=subnet-a Ipv4Prefix.1.Ipv4Prefix=10.0.0.64/28",
			"CreateNetworkInterface SubnetId=subnet-a Ipv4PrefixCount=1",
		}, []string{"", "", "", "", ""}, []string{"10.0.0.4", "10.0.0.8 10.0.0.9", "10.0.0.6 10.0.0.5",
			"10.0.0.100 10.0.0.7",
			"10.0.0.10 10.0.0.64/28", "10.0.0.11 10.0.0.16/28"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sim, _ := start(t, world)
			for n, call := range c.calls {
				answer := must(t, sim, call)
				var got []string
				if strings.HasPrefix(call, "Assign") {
					got = append(answer.all("privateIpAddress"), answer.all("ipv4Prefix")...)
				}
				if strings.Join(got, " ") != c.want[n] {
					t.Errorf("%s: got %v, want %s", call, got, c.want[n])
				}
			}
			var enis []string
			for _, e := range sim.ENIs() {
				enis = append(enis, strings.Join(append(texts(e.Addrs), texts(e.Prefixes)...), " "))
			}
			if diff := cmp.Diff(c.enis, enis); diff != "" {
				t.Errorf("ENIs (-want +got):\n%s", diff)
			}
			check(t, sim)
		})
	}
}

// TestFragmentation: if each /28 of a subnet has a used address, no prefix is free, although most addresses are free.
func TestFragmentation(t *testing.T) {
	sim, _ := start(t, world)
	must(t, sim, "CreateNetworkInterface SubnetId=subnet-b")
	for block := 1; block < 16; block++ {
		must(t, sim, fmt.Sprintf("AssignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.1.%d",
			block*16+7))
	}
	if got, _ := refused(t, sim,
		"AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1"); got != "400 InsufficientCidrBlocks" {
		t.Error(got)
	}
	answer := must(t, sim, "DescribeSubnets SubnetId.1=subnet-b")
	if got := answer.one(t, "availableIpAddressCount"); got != "235" {
		t.Errorf("%s addresses free, want 251-16", got)
	}
	must(t, sim, "UnassignPrivateIpAddresses NetworkInterfaceId=eni-2 PrivateIpAddress.1=10.0.1.55")
	if got := must(t, sim, "AssignPrivateIpAddresses NetworkInterfaceId=eni-2 Ipv4PrefixCount=1").one(t,
		"ipv4Prefix"); got != "10.0.1.48/28" {
		t.Error(got)
	}
}

// TestSubnetRunsFull takes all 11 addresses of a /28. After the deletion of the ENI, all 11 addresses are free.
func TestSubnetRunsFull(t *testing.T) {
	sim, _ := start(t, world)
	answer := must(t, sim, "CreateNetworkInterface SubnetId=subnet-tiny SecondaryPrivateIpAddressCount=10")
	var want []string
	for n := 4; n < 15; n++ {
		want = append(want, fmt.Sprintf("10.0.3.%d", n))
	}
	got := answer.all("privateIpAddress")[1:] // without the first, which repeats the primary address
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := free(sim)["subnet-tiny"]; got != 0 {
		t.Errorf("%d left", got)
	}
	must(t, sim, "DeleteNetworkInterface NetworkInterfaceId=eni-2")
	if got := free(sim)["subnet-tiny"]; got != 11 {
		t.Errorf("%d left after the ENI is gone", got)
	}
}

// TestConcurrentAssigns: 200 callers ask at the same time for addresses of 60 ENIs. Each caller gets its own addresses,
// or a correct refusal.
func TestConcurrentAssigns(t *testing.T) {
	c := world
	c.InstanceTypes = []InstanceType{{Name: "wide", ENIs: 61, IPv4PerENI: 10}}
	sim, _ := start(t, c)
	i := run(t, sim, RunInstance{Type: "wide", Subnet: "subnet-big"})
	for n := range 60 {
		answer := must(t, sim, "CreateNetworkInterface SubnetId=subnet-big")
		must(t, sim, fmt.Sprintf("AttachNetworkInterface InstanceId=%s NetworkInterfaceId=%s DeviceIndex=%d", i.ID,
			answer.one(t, "networkInterfaceId"), n+1))
	}
	type result struct {
		code  int
		addrs []string
	}
	results := make(chan result)
	for n := range 200 {
		go func() {
			code, body := post(t, sim,
				fmt.Sprintf("AssignPrivateIpAddresses NetworkInterfaceId=eni-%x SecondaryPrivateIpAddressCount=3",
					3+n%60))
			results <- result{code, parse(t, body).all("privateIpAddress")}
		}()
	}
	var all []string
	full := 0
	for range 200 {
		r := <-results
		all = append(all, r.addrs...)
		if r.code != http.StatusOK {
			full++
		}
	}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("an address was given twice: %v", all)
	}
	// Each ENI has room for the addresses of three calls. For 20 of the 60 ENIs there is a fourth call, which EC2
	// refuses.
	if len(all) != 60*9 || full != 20 {
		t.Errorf("%d addresses and %d refusals, want 540 and 20", len(all), full)
	}
	check(t, sim)
}
