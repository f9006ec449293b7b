// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"cmp"
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

// cleanPatience is how long deleteObjects tries. The termination of an instance takes a minute or two.
const cleanPatience = 15 * time.Minute

// defaultLooks is how many consecutive answers without objects prove that EC2 has deleted a run's objects. A single
// answer may not yet show a new object.
const defaultLooks = 3

// leftovers are objects that runs have made, and that still exist. Terminated instances do not count: EC2 shows them
// for an hour, but they cost nothing.
type leftovers struct {
	instances []types.Instance
	enis      []types.NetworkInterface
	groups    []types.SecurityGroup
	keys      []types.KeyPairInfo
}

// forEach calls the function f for each leftover, in an order in which EC2 can delete the objects.
func (r leftovers) forEach(f func(kind, id string, tags []types.Tag)) {
	for _, i := range r.instances {
		f("instance", sdk.ToString(i.InstanceId), i.Tags)
	}
	for _, k := range r.keys {
		f("key pair", sdk.ToString(k.KeyName), k.Tags)
	}
	for _, e := range r.enis {
		f("ENI", sdk.ToString(e.NetworkInterfaceId), e.TagSet)
	}
	for _, g := range r.groups {
		f("security group", sdk.ToString(g.GroupId), g.Tags)
	}
}

func (r leftovers) isEmpty() bool { return len(r.instances)+len(r.enis)+len(r.groups)+len(r.keys) == 0 }

// String returns a text that lists the objects.
func (r leftovers) String() string {
	if r.isEmpty() {
		return "objects that EC2 has not shown"
	}
	var all []string
	r.forEach(func(kind, id string, _ []types.Tag) { all = append(all, kind+" "+id) })
	return strings.Join(all, ", ")
}

func (r leftovers) runIDs() []string {
	var all []string
	r.forEach(func(_, _ string, tags []types.Tag) { all = append(all, tagMap(tags)[tagRun]) })
	slices.Sort(all)
	return slices.Compact(all)
}

// findLeftovers asks EC2 for the objects of a run, or of all runs if the ID is empty. EC2 may not yet show a new
// object, so the result also has the objects that m records (see addMade). m may be nil.
func (c *cloud) findLeftovers(ctx context.Context, run string, m *madeObjects) (r leftovers, err error) {
	mine := newFilters("tag-key", tagRun)
	if run != "" {
		mine = newFilters("tag:"+tagRun, run)
	}
	if r.instances, err = allPages(ctx, ec2.NewDescribeInstancesPaginator(c.ec2,
		&ec2.DescribeInstancesInput{Filters: mine}), instancesOf); err != nil {
		return r, err
	}
	r.enis, err = allPages(ctx, ec2.NewDescribeNetworkInterfacesPaginator(c.ec2,
		&ec2.DescribeNetworkInterfacesInput{Filters: mine}),
		func(p *ec2.DescribeNetworkInterfacesOutput) []types.NetworkInterface { return p.NetworkInterfaces })
	if err != nil {
		return r, err
	}
	r.groups, err = allPages(ctx, ec2.NewDescribeSecurityGroupsPaginator(c.ec2,
		&ec2.DescribeSecurityGroupsInput{Filters: mine}),
		func(p *ec2.DescribeSecurityGroupsOutput) []types.SecurityGroup { return p.SecurityGroups })
	if err != nil {
		return r, err
	}
	keys, err := c.ec2.DescribeKeyPairs(ctx, &ec2.DescribeKeyPairsInput{Filters: mine})
	if err != nil {
		return r, err
	}
	r.keys = keys.KeyPairs
	if m != nil {
		r.addMade(m)
	}
	r.instances = slices.DeleteFunc(r.instances, func(i types.Instance) bool {
		return i.State.Name == types.InstanceStateNameTerminated
	})
	return r, nil
}

// addMade adds the run's instances and the run's security group, except those that EC2 has already shown.
func (r *leftovers) addMade(m *madeObjects) {
	for _, n := range m.nodes {
		if !slices.ContainsFunc(r.instances, func(i types.Instance) bool { return *i.InstanceId == n.id }) {
			r.instances = append(r.instances, types.Instance{InstanceId: &n.id,
				State: &types.InstanceState{Name: types.InstanceStateNamePending}})
		}
	}
	if m.group != "" && !slices.ContainsFunc(r.groups, func(g types.SecurityGroup) bool {
		return *g.GroupId == m.group
	}) {
		r.groups = append(r.groups, types.SecurityGroup{GroupId: new(m.group)})
	}
}

// allPages returns the items of all pages of an answer.
func allPages[P, I any](ctx context.Context, p interface {
	HasMorePages() bool
	NextPage(context.Context, ...func(*ec2.Options)) (P, error)
}, items func(P) []I) ([]I, error) {
	var all []I
	for p.HasMorePages() {
		page, err := p.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, items(page)...)
	}
	return all, nil
}

// cleanKilledRuns deletes the objects of killed runs, and also the objects of a run that is still running. So without
// -yes, it only prints the objects.
func (c *cloud) cleanKilledRuns(ctx context.Context, o options, out output) error {
	out.line("%s in %s: looking for objects with the tag %s",
		c.caller, c.region, strings.TrimSuffix(tagRun+"="+o.run, "="))
	r, err := c.findLeftovers(ctx, o.run, nil)
	if err != nil {
		return err
	}
	r.forEach(func(kind, id string, tags []types.Tag) {
		out.line("  %-15s %s of run %s", kind, id, tagMap(tags)[tagRun])
	})
	if !o.yes && !r.isEmpty() {
		return &refusal{errors.New("nothing was deleted. If none of these runs is still running, use -clean -yes to " +
			"delete all of these objects. With -run ID, the program deletes the objects of only one run")}
	}
	return c.deleteObjects(ctx, o.run, nil, 1, out)
}

// cleanCommand returns the command with which a person deletes the objects that a run has left.
func cleanCommand(run string) string {
	return strings.TrimSuffix(`make test-ec2 ARGS="-clean -yes -run `+run, " -run ") + `"`
}

// deleteObjects deletes the objects of a run, or of all runs if the ID is empty. It asks EC2 again and again, until
// emptyLooks consecutive answers contain no objects.
//
// EC2 refuses to delete the security group while an instance or an ENI uses the group. This also applies to instances
// and ENIs that EC2 does not show yet. So when the group is deleted, nothing of the run remains. A request that reaches
// EC2 later creates nothing, because the request names the deleted group.
func (c *cloud) deleteObjects(ctx context.Context, run string, m *madeObjects, emptyLooks int, out output) error {
	said := map[string]bool{}
	say := func(key, line string) {
		if !said[key] {
			said[key] = true
			out.line("%s", line)
		}
	}
	var r leftovers
	var failed error
	for end, empty := time.Now().Add(cleanPatience), 0; empty < emptyLooks; {
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("after %v, these objects remain: %s. To try again, run %s", cleanPatience, r,
				cleanCommand(run)), failed)
		}
		found, err := c.lookAndDelete(ctx, run, m, say)
		empty++
		if !found.isEmpty() {
			r, empty = found, 0
		}
		if err != nil {
			empty = 0
			say(cmp.Or(errorCode(err), err.Error()), fmt.Sprintf("retry  %v", err))
		}
		failed = err
		if empty < emptyLooks {
			if err := c.waitPause(ctx); err != nil {
				return errors.Join(fmt.Errorf("interrupted. These objects may remain: %s. To try again, run %s", r,
					cleanCommand(run)), failed)
			}
		}
	}
	out.line("deleted: EC2 shows nothing with the tag any more")
	return nil
}

// lookAndDelete asks EC2 for the objects that still exist, and calls deleteNow for these objects. The question and the
// deletion together take at most a minute.
func (c *cloud) lookAndDelete(
	ctx context.Context, run string, m *madeObjects, say func(key, line string),
) (leftovers, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := c.findLeftovers(ctx, run, m)
	if err != nil {
		return r, err
	}
	return r, c.deleteNow(ctx, r, m, say)
}

// deleteNow deletes the objects that EC2 can delete now. Until an instance has ended, EC2 can delete neither the
// instance's ENIs nor the security group.
func (c *cloud) deleteNow(ctx context.Context, r leftovers, m *madeObjects, say func(key, line string)) error {
	r.forEach(func(kind, id string, _ []types.Tag) { say(id, "delete "+kind+" "+id) })
	var errs []error
	try := func(err error) (gone bool) {
		gone = err == nil || strings.HasSuffix(errorCode(err), ".NotFound")
		if !gone && errorCode(err) != "DependencyViolation" {
			errs = append(errs, err)
		}
		return gone
	}
	for _, i := range r.instances {
		if i.State.Name != types.InstanceStateNameShuttingDown {
			_, err := c.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{*i.InstanceId}})
			try(err)
		}
	}
	for _, k := range r.keys {
		_, err := c.ec2.DeleteKeyPair(ctx, &ec2.DeleteKeyPairInput{KeyName: k.KeyName})
		try(err)
	}
	for _, e := range r.enis {
		if e.Status == types.NetworkInterfaceStatusAvailable {
			_, err := c.ec2.DeleteNetworkInterface(ctx,
				&ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: e.NetworkInterfaceId})
			try(err)
		}
	}
	if len(r.instances)+len(r.enis) > 0 {
		return errors.Join(errs...)
	}
	for _, g := range r.groups {
		_, err := c.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: g.GroupId})
		if try(err) && m != nil && m.group == *g.GroupId {
			m.group = ""
		}
	}
	return errors.Join(errs...)
}
