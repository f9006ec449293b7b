// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"errors"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestLostAnswers: after a lost answer, the SDK repeats a call that has a token, or that is harmless to repeat.
func TestLostAnswers(t *testing.T) {
	inBubble(t, "a creation finds its ENI again", func(t *testing.T) {
		sim, _, c := world(t, "m5.large")
		sim.Lose("CreateNetworkInterface", 1)
		e := must(c.CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-b"}))(t)
		if enis := sim.ENIs(); len(enis) != 2 || enis[1].ID != e.ID {
			t.Errorf("EC2 has %v, and answered %s", enis, e.ID)
		}
	})
	for _, family := range []string{"AssignPrivateIpAddresses", "AssignIpv6Addresses"} {
		inBubble(t, family, func(t *testing.T) {
			sim, node, c := twoFamilies(t)
			assign := map[string]func(*aws.Client) error{
				"AssignPrivateIpAddresses": func(c *aws.Client) error {
					return drop(c.Assign(t.Context(), node.ENIs()[0].ID, 2))
				},
				"AssignIpv6Addresses": func(c *aws.Client) error {
					return drop(c.AssignIPv6(t.Context(), node.ENIs()[0].ID, 2))
				},
			}
			sim.Lose(family, 1)
			if err := assign[family](c); !errors.Is(err, aws.ErrTransient) {
				t.Errorf("got %v, want ErrTransient", err)
			}
			if calls := sim.Calls(); len(calls) != 1 || !calls[0].Lost {
				t.Errorf("calls: %v", calls)
			}
		})
	}
}

// TestThrottled: when the account has used up its calls of an action, the Client returns the throttling error.
func TestThrottled(t *testing.T) {
	inBubble(t, "buckets", func(t *testing.T) {
		config := ec2sim.World("vpc-1 10.0.0.0/16\nsubnet-a 10.0.0.0/24")
		config.Throttle, config.Buckets = true, map[string]ec2sim.Bucket{"DescribeVpcs": {Size: 2, Refill: 1}}
		sim, err := ec2sim.New(config)
		if err != nil {
			t.Fatal(err)
		}
		c := aws.New(aws.Options{EC2URL: "http://ec2.test", HTTP: ec2sim.Direct{Handler: sim}, Attempts: 1})
		var got []bool
		for range 3 {
			_, err := c.VPC(t.Context(), "vpc-1")
			got = append(got, errors.Is(err, aws.ErrThrottled))
		}
		time.Sleep(time.Second)
		_, err = c.VPC(t.Context(), "vpc-1")
		equal(t, "throttled", append(got, errors.Is(err, aws.ErrThrottled)), []bool{false, false, true, false})
	})
}

// TestLyingMetadata: the Client omits an ENI that metadata does not describe completely, and returns all other ENIs.
func TestLyingMetadata(t *testing.T) {
	for name, c := range map[string]struct {
		lie  func(eni string) ec2sim.Lie
		want int // number of returned ENIs
	}{
		"forgotten":        {ec2sim.ForgetENI, 1},
		"all keys missing": {ec2sim.HideENI, 1},
		"no ID yet":        {func(eni string) ec2sim.Lie { return ec2sim.HideKeys(eni, "interface-id") }, 1},
		"unreadable":       {ec2sim.FailENI, 1},
		"index not known":  {ec2sim.ZeroDeviceNumber, 2},
		"no addresses yet": {func(eni string) ec2sim.Lie { return ec2sim.HideKeys(eni, "local-ipv4s") }, 2},
	} {
		inBubble(t, name, func(t *testing.T) {
			_, node, cloud := world(t, "m5.large")
			e := must(cloud.CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-b"}))(t)
			must(cloud.AttachENI(t.Context(), e.ID, node.ID, 0, 1))(t)
			defer node.Lie(c.lie(e.ID))()
			enis := must(cloud.ENIs(t.Context()))(t)
			if len(enis) != c.want || enis[0].Index != 0 {
				t.Errorf("%d ENIs, want %d: %+v", len(enis), c.want, enis)
			}
			if name == "index not known" && enis[1].Index != aws.UnknownIndex {
				t.Errorf("index %d", enis[1].Index)
			}
		})
	}
	inBubble(t, "unavailable", func(t *testing.T) {
		_, node, cloud := world(t, "m5.large")
		stop := node.Lie(ec2sim.Unavailable())
		if _, err := cloud.ENIs(t.Context()); err == nil {
			t.Error("no error")
		}
		stop()
		must(cloud.ENIs(t.Context()))(t)
	})
}
