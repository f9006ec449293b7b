// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// cleanPatience is how long everything may take to disappear. An instance ends within a minute or two.
const cleanPatience = 15 * time.Minute

// remains are what EC2 shows of runs. Instances that are terminated do not count: EC2 shows them for an hour, and they cost nothing.
type remains struct {
	instances []types.Instance
	enis      []types.NetworkInterface
	groups    []types.SecurityGroup
	keys      []types.KeyPairInfo
}

func (r remains) none() bool { return len(r.instances)+len(r.enis)+len(r.groups)+len(r.keys) == 0 }

// String lists what remains.
func (r remains) String() string {
	var all []string
	for _, i := range r.instances {
		all = append(all, *i.InstanceId)
	}
	for _, e := range r.enis {
		all = append(all, *e.NetworkInterfaceId)
	}
	for _, g := range r.groups {
		all = append(all, *g.GroupId)
	}
	for _, k := range r.keys {
		all = append(all, "key pair "+*k.KeyName)
	}
	return strings.Join(all, ", ")
}

// remains asks EC2 for what a run has made, or any run if its ID is empty.
func (c *cloud) remains(ctx context.Context, run string) (remains, error) {
	mine := filters("tag-key", tagRun)
	if run != "" {
		mine = filters("tag:"+tagRun, run)
	}
	var r remains
	instances, err := c.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: mine})
	if err != nil {
		return r, err
	}
	ended := func(i types.Instance) bool { return i.State.Name == types.InstanceStateNameTerminated }
	r.instances = slices.DeleteFunc(instancesOf(instances), ended)
	enis, err := c.ec2.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{Filters: mine})
	if err != nil {
		return r, err
	}
	groups, err := c.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: mine})
	if err != nil {
		return r, err
	}
	keys, err := c.ec2.DescribeKeyPairs(ctx, &ec2.DescribeKeyPairsInput{Filters: mine})
	if err != nil {
		return r, err
	}
	r.enis, r.groups, r.keys = enis.NetworkInterfaces, groups.SecurityGroups, keys.KeyPairs
	return r, nil
}

// clean deletes what a run has made, or any run if its ID is empty. It ends when EC2 has shown nothing for a number of looks one
// after another: EC2 may show late what was made a moment ago.
func (c *cloud) clean(ctx context.Context, run string, looks int, out output) error {
	said := map[string]bool{}
	say := func(what, id string) {
		if !said[id] {
			said[id] = true
			out.line("delete %s %s", what, id)
		}
	}
	var r remains
	var failed error
	for end, empty := time.Now().Add(cleanPatience), 0; empty < looks; {
		if time.Now().After(end) {
			return fmt.Errorf("after %v there remain %s: try again with -clean (make test-ec2 ARGS=-clean): %w", cleanPatience, r, failed)
		}
		var err error
		if r, err = c.remains(ctx, run); err == nil && r.none() {
			empty++
			failed = nil
		} else {
			empty = 0
			failed = errors.Join(err, c.remove(ctx, r, say))
		}
		if empty < looks {
			if err := c.wait(ctx); err != nil {
				return fmt.Errorf("there may remain %s: %w", r, errors.Join(err, failed))
			}
		}
	}
	out.line("deleted: EC2 shows nothing with the tag any more")
	return nil
}

// remove deletes what can be deleted now. An ENI that is attached, and a group that an ENI has, wait for the instances.
func (c *cloud) remove(ctx context.Context, r remains, say func(what, id string)) error {
	var errs []error
	try := func(_ any, err error) {
		if err != nil && !strings.HasSuffix(code(err), ".NotFound") && code(err) != "DependencyViolation" {
			errs = append(errs, err)
		}
	}
	for _, i := range r.instances {
		say("instance", *i.InstanceId)
		if i.State.Name != types.InstanceStateNameShuttingDown {
			try(c.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{*i.InstanceId}}))
		}
	}
	for _, k := range r.keys {
		say("key pair", *k.KeyName)
		try(c.ec2.DeleteKeyPair(ctx, &ec2.DeleteKeyPairInput{KeyName: k.KeyName}))
	}
	for _, e := range r.enis {
		say("ENI", sdk.ToString(e.NetworkInterfaceId))
		if e.Status == types.NetworkInterfaceStatusAvailable {
			try(c.ec2.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId}))
		}
	}
	for _, g := range r.groups {
		say("security group", *g.GroupId)
		if len(r.instances)+len(r.enis) == 0 {
			try(c.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: g.GroupId}))
		}
	}
	return errors.Join(errs...)
}
