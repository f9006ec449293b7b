// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ec2sim

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBuckets empties each bucket, and checks how many tokens EC2 has added after one second, after 1.5 more seconds,
// and after one more hour.
func TestBuckets(t *testing.T) {
	const tooMany = "503 RequestLimitExceeded"
	for _, c := range []struct {
		call         string
		size, refill int
	}{
		{"AssignPrivateIpAddresses NetworkInterfaceId=eni-9 SecondaryPrivateIpAddressCount=1", 100, 5},
		{"AssignIpv6Addresses NetworkInterfaceId=eni-9 Ipv6AddressCount=1", 100, 5},
		{"UnassignPrivateIpAddresses NetworkInterfaceId=eni-9 PrivateIpAddress.1=10.0.0.5", 50, 5},
		{"UnassignIpv6Addresses NetworkInterfaceId=eni-9 Ipv6Addresses.1=2001:db8::5", 50, 5},
		{"CreateNetworkInterface SubnetId=subnet-x", 100, 5},
		{"DeleteNetworkInterface NetworkInterfaceId=eni-9", 100, 5},
		{"ModifyNetworkInterfaceAttribute NetworkInterfaceId=eni-9", 100, 5},
		{"AttachNetworkInterface InstanceId=i-1 NetworkInterfaceId=eni-9 DeviceIndex=1", 50, 5},
		{"DetachNetworkInterface AttachmentId=eni-attach-9", 50, 5},
		{"CreateTags ResourceId.1=eni-9 Tag.1.Key=a", 100, 10},
		{"DescribeSubnets", 100, 20},
		{"DescribeNetworkInterfaces", 50, 10},
		{"DescribeNetworkInterfaces NetworkInterfaceId.1=eni-1", 50, 10},
		{"DescribeNetworkInterfaces MaxResults=5", 100, 20},
		{"DescribeNetworkInterfaces Filter.1.Name=status Filter.1.Value.1=in-use", 100, 20},
		{"DescribeVpcs", 3, 1},
	} {
		t.Run(c.call, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				with := world
				with.Throttle, with.Buckets = true, map[string]Bucket{"DescribeVpcs": {Size: 3, Refill: 1}}
				sim, _ := start(t, with)
				answered := func() (n int) {
					for code, _ := refused(t, sim, c.call); code != tooMany; code, _ = refused(t, sim, c.call) {
						n++
					}
					return n
				}
				for _, step := range []struct {
					wait time.Duration
					want int
				}{{0, c.size}, {0, 0}, {time.Second - 1, 0}, {1, c.refill}, {1500 * time.Millisecond, c.refill},
					{time.Hour, c.size}} {
					time.Sleep(step.wait)
					if got := answered(); got != step.want {
						t.Errorf("%v later: %d answers, want %d", step.wait, got, step.want)
					}
				}
				other := "DescribeVpcPeeringConnections"
				if code, _ := refused(t, sim, other); code != "200" {
					t.Errorf("%s, which has a bucket of its own: %s", other, code)
				}
			})
		})
	}
}

// TestNoBuckets: without Throttle there is no limit.
func TestNoBuckets(t *testing.T) {
	with := world
	with.Buckets = map[string]Bucket{"DescribeVpcs": {Size: 1, Refill: 0}}
	sim, _ := start(t, with)
	for range 200 {
		must(t, sim, "DescribeVpcs")
	}
}

// TestThrottledDoesNothing: Calls returns a throttled call with its error code, and the call changes nothing.
func TestThrottledDoesNothing(t *testing.T) {
	with := world
	with.Throttle, with.Buckets = true, map[string]Bucket{"CreateNetworkInterface": {Size: 1, Refill: 0}}
	sim, _ := start(t, with)
	must(t, sim, create)
	if code, _ := refused(t, sim, create); code != "503 RequestLimitExceeded" {
		t.Error(code)
	}
	if calls, enis := sim.Calls(), sim.ENIs(); len(enis) != 2 || calls[1].Code != "RequestLimitExceeded" {
		t.Errorf("%v and %v", calls, enis)
	}
}
