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

// cleanPatience is the longest time that all deletions may take. An instance ends within a minute or two.
const cleanPatience = 15 * time.Minute

// looks is how many times in a row EC2 must show nothing. One time is not enough, because EC2 may show late what a run
// has made a moment ago.
const looks = 3

// remains are the objects of runs that EC2 shows. Terminated instances do not count: EC2 shows them for an hour, and
// they cost nothing.
type remains struct {
	instances []types.Instance
	enis      []types.NetworkInterface
	groups    []types.SecurityGroup
	keys      []types.KeyPairInfo
}

// each calls f with each object that remains, in the order in which a run can delete the objects.
func (r remains) each(f func(kind, id string, tags []types.Tag)) {
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

func (r remains) none() bool { return len(r.instances)+len(r.enis)+len(r.groups)+len(r.keys) == 0 }

// String lists the objects that remain.
func (r remains) String() string {
	if r.none() {
		return "objects that EC2 has not shown"
	}
	var all []string
	r.each(func(kind, id string, _ []types.Tag) { all = append(all, kind+" "+id) })
	return strings.Join(all, ", ")
}

// runs returns the IDs of the runs that have left objects.
func (r remains) runs() []string {
	var all []string
	r.each(func(_, _ string, tags []types.Tag) { all = append(all, tagMap(tags)[tagRun]) })
	slices.Sort(all)
	return slices.Compact(all)
}

// remains asks EC2 for the objects of a run, or of all runs if the ID is empty. EC2 may show new objects late. So
// objects in m, which this run has made, count even if EC2 does not show them. m may be nil.
func (c *cloud) remains(ctx context.Context, run string, m *made) (r remains, err error) {
	mine := filters("tag-key", tagRun)
	if run != "" {
		mine = filters("tag:"+tagRun, run)
	}
	if r.instances, err = pages(ctx, ec2.NewDescribeInstancesPaginator(c.ec2,
		&ec2.DescribeInstancesInput{Filters: mine}), instancesOf); err != nil {
		return r, err
	}
	r.enis, err = pages(ctx, ec2.NewDescribeNetworkInterfacesPaginator(c.ec2,
		&ec2.DescribeNetworkInterfacesInput{Filters: mine}),
		func(p *ec2.DescribeNetworkInterfacesOutput) []types.NetworkInterface { return p.NetworkInterfaces })
	if err != nil {
		return r, err
	}
	r.groups, err = pages(ctx, ec2.NewDescribeSecurityGroupsPaginator(c.ec2,
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
		r.know(m)
	}
	r.instances = slices.DeleteFunc(r.instances, func(i types.Instance) bool {
		return i.State.Name == types.InstanceStateNameTerminated
	})
	return r, nil
}

// know adds the instances and the security group in m that EC2 does not show.
func (r *remains) know(m *made) {
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

// pages collects the items of all pages of an answer.
func pages[P, I any](ctx context.Context, p interface {
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

// sweep deletes the objects that killed runs have left. Without -yes, sweep only prints these objects, because one of
// the runs may still be running.
func (c *cloud) sweep(ctx context.Context, o options, out output) error {
	out.line("%s in %s: looking for objects with the tag %s",
		c.caller, c.region, strings.TrimSuffix(tagRun+"="+o.run, "="))
	r, err := c.remains(ctx, o.run, nil)
	if err != nil {
		return err
	}
	r.each(func(kind, id string, tags []types.Tag) {
		out.line("  %-15s %s of run %s", kind, id, tagMap(tags)[tagRun])
	})
	if !o.yes && !r.none() {
		return &refusal{errors.New("nothing was deleted. If none of these runs is still running, use -clean -yes to " +
			"delete all of these objects. With -run ID, the program deletes the objects of only one run")}
	}
	return c.clean(ctx, o.run, nil, 1, out)
}

// again returns the command that deletes the objects that a run has left.
func again(run string) string {
	return strings.TrimSuffix(`make test-ec2 ARGS="-clean -yes -run `+run, " -run ") + `"`
}

// clean deletes the objects of a run, or of all runs if the ID is empty. A look asks EC2 which objects remain. clean
// ends when EC2 has shown no object in several looks in a row. The argument looks is the number of these looks.
//
// The deletion of the security group makes sure that nothing remains. EC2 refuses this deletion while an instance or
// an ENI has the group, even one that EC2 does not show yet. A launch or a new ENI of the run may still be under way
// when EC2 deletes the group. EC2 then refuses the launch or the ENI.
func (c *cloud) clean(ctx context.Context, run string, m *made, looks int, out output) error {
	said := map[string]bool{}
	say := func(key, line string) {
		if !said[key] {
			said[key] = true
			out.line("%s", line)
		}
	}
	var r remains
	var failed error
	for end, empty := time.Now().Add(cleanPatience), 0; empty < looks; {
		if time.Now().After(end) {
			return errors.Join(fmt.Errorf("after %v, these objects remain: %s. To try again, run %s", cleanPatience, r,
				again(run)), failed)
		}
		found, err := c.look(ctx, run, m, say)
		switch {
		case err != nil:
			empty = 0
			say(cmp.Or(code(err), err.Error()), fmt.Sprintf("again  %v", err))
		case found.none():
			empty++
		default:
			r, empty = found, 0
		}
		failed = err
		if empty < looks {
			if err := c.wait(ctx); err != nil {
				return errors.Join(fmt.Errorf("interrupted. These objects may remain: %s. To try again, run %s", r,
					again(run)), failed)
			}
		}
	}
	out.line("deleted: EC2 shows nothing with the tag any more")
	return nil
}

// look asks EC2 for the objects that remain, and deletes the objects that can be deleted now. look ends after a minute
// at the latest, and clean then calls look again.
func (c *cloud) look(ctx context.Context, run string, m *made, say func(key, line string)) (remains, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := c.remains(ctx, run, m)
	if err != nil {
		return r, err
	}
	return r, c.remove(ctx, r, m, say)
}

// remove deletes the objects that can be deleted now. EC2 does not delete an attached ENI, or a security group of an
// ENI, before the instances have ended.
func (c *cloud) remove(ctx context.Context, r remains, m *made, say func(key, line string)) error {
	r.each(func(kind, id string, _ []types.Tag) { say(id, "delete "+kind+" "+id) })
	var errs []error
	try := func(err error) (gone bool) {
		gone = err == nil || strings.HasSuffix(code(err), ".NotFound")
		if !gone && code(err) != "DependencyViolation" {
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
