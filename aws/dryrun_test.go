// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestDryRun tries every action, allowed and denied, and checks that EC2 changes nothing.
func TestDryRun(t *testing.T) {
	for _, action := range api.Names(api.Node) {
		inBubble(t, action, func(t *testing.T) {
			sim, node, c := world(t, "m5.large")
			e := node.ENIs()[0]
			on := aws.Target{ENI: e.ID, Attachment: e.Attachment, Instance: node.ID, Subnet: "subnet-b",
				SecurityGroups: []string{"sg-1"}, Tags: map[string]string{"a": "b"}}
			before := fmt.Sprint(sim.ENIs())
			if err := c.DryRun(t.Context(), action, on); err != nil {
				t.Errorf("allowed: %v", err)
			}
			sim.Fail(action, "UnauthorizedOperation", 1)
			err := c.DryRun(t.Context(), action, on)
			if !errors.Is(err, aws.ErrDenied) || !strings.Contains(aws.Hint(err), "ec2:"+action) {
				t.Errorf("denied: %v, hint %q", err, aws.Hint(err))
			}
			sim.Fail(action, "RequestLimitExceeded", 2)
			if err := c.DryRun(t.Context(), action, on); !errors.Is(err, aws.ErrThrottled) {
				t.Errorf("throttled: %v", err)
			}
			if after := fmt.Sprint(sim.ENIs()); after != before {
				t.Errorf("it has changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// TestDryRunOfTags: the role may create ENIs, but not tags. DryRun must report that the creation of an ENI is allowed
// without tags, and denied with tags.
func TestDryRunOfTags(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := ec2sim.World("vpc-1 10.0.0.0/16\nsubnet-a 10.0.0.0/24")
		config.Denied = []string{"CreateTags"}
		_, _, c := launched(t, config, ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-a"})
		if err := c.DryRun(t.Context(), "CreateNetworkInterface", aws.Target{Subnet: "subnet-a"}); err != nil {
			t.Errorf("without tags: %v", err)
		}
		if err := c.DryRun(t.Context(), "CreateNetworkInterface",
			aws.Target{Subnet: "subnet-a", Tags: map[string]string{"a": "b"}}); !errors.Is(err, aws.ErrDenied) {
			t.Errorf("with tags: %v, want ErrDenied", err)
		}
	})
}

// TestDryRunLeavesOpen checks answers that are neither "allowed" nor "denied".
func TestDryRunLeavesOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sim, _, c := world(t, "m5.large")
		if err := c.DryRun(t.Context(), "AssignPrivateIpAddresses",
			aws.Target{ENI: "eni-00000000000000000"}); !errors.Is(err, aws.ErrNotFound) {
			t.Errorf("no ENI: %v, want ErrNotFound", err)
		}
		sim.Fail("DescribeVpcs", "InternalError", 2)
		if err := c.DryRun(t.Context(), "DescribeVpcs", aws.Target{}); !errors.Is(err, aws.ErrTransient) {
			t.Errorf("a fault: %v, want ErrTransient", err)
		}
		if err := c.DryRun(t.Context(), "TerminateInstances", aws.Target{}); err == nil ||
			errors.Is(err, aws.ErrDenied) {
			t.Errorf("an action that EC2 does not have: %v", err)
		}
	})
}
