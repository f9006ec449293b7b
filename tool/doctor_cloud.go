// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// checkAgreement does what status --diff does.
func (p *patient) checkAgreement(ctx context.Context) ([]ailment, error) {
	k, err := compare(ctx, p.pool, p.waits)
	if err != nil {
		return nil, err
	}
	var found []ailment
	unheard := func(who string, w witness) {
		if !w.heard {
			found = append(found, ailment{Severity: doubted, About: who, Means: "it does not answer, and was not compared", Do: "see the warning on standard error"})
		}
	}
	unheard("metadata service", k.metadata)
	unheard("EC2", k.ec2)
	for _, f := range k.findings() {
		a := ailment{Severity: severe, About: f.About, Means: f.Means, Do: f.Do}
		if f.Harmless {
			a.Severity = noted
		}
		found = append(found, a)
	}
	return found, nil
}

// checkRefusals says what this node remembers of EC2's answers.
func (p *patient) checkRefusals(context.Context) ([]ailment, error) {
	var found []ailment
	now := time.Now()
	for _, action := range slices.Sorted(maps.Keys(p.state.NotBefore)) {
		if until := p.state.NotBefore[action]; until.After(now) {
			found = append(found, ailment{Severity: doubted, About: "ec2:" + action, Means: "EC2 throttles the account; this node waits another " + brief(until.Sub(now)),
				Do: "larger batches (ipBatchSize), prefixes, or ENIs from the launch template need fewer calls"})
		}
	}
	for _, concern := range slices.Sorted(maps.Keys(p.state.Failures)) {
		f := p.state.Failures[concern]
		network, pool, _ := strings.Cut(concern, "/")
		found = append(found, ailment{Severity: severe, About: "pool " + poolName(pool) + " of " + network,
			Means: "ADDs fail, the last one " + brief(max(now.Sub(f.Since), 0)) + " ago: " + f.Text, Do: cmp.Or(f.Hint, "see the events of the pods")})
	}
	if until := p.state.Instance.FullUntil; until.After(now) {
		found = append(found, ailment{Severity: doubted, About: p.state.Instance.ID, Means: "EC2 gives it no further ENI; this node asks again in " + brief(until.Sub(now)),
			Do: "detach what others have attached, use prefixes, or let the kubelet take fewer pods (" + Name + " maxpods)"})
	}
	return found, nil
}

// checkIAM tries each action that the configuration needs, without effect.
func (p *patient) checkIAM(ctx context.Context) ([]ailment, error) {
	if p.config == nil {
		return nil, nil // checkConfig says so
	}
	n := needs{pools: p.config.Policies(), mode: p.config.Policies()[0].Provision}
	on, err := p.target(ctx, n)
	if err != nil {
		return nil, err
	}
	var found []ailment
	for _, action := range n.actions() {
		if on.ENI == "" && bound(action) {
			continue
		}
		err := p.pool.Cloud.DryRun(ctx, action, on)
		switch {
		case errors.Is(err, aws.ErrDenied):
			found = append(found, ailment{Severity: severe, About: "ec2:" + action, Means: "the role is not allowed to: " + err.Error(),
				Do: Name + " iam-policy prints what it needs"})
		case err != nil:
			return found, err
		}
	}
	if on.ENI == "" && slices.ContainsFunc(n.actions(), bound) {
		found = append(found, ailment{Severity: noted, About: "permissions on ENIs", Means: "they were not tried: this node has no ENI for pods yet",
			Do: Name + " warm, or the first pod, makes one"})
	}
	return found, nil
}

// actions are those of the policy, but for CreateTags, which is tried with CreateNetworkInterface.
func (n needs) actions() []string {
	names := map[string]bool{}
	for _, s := range n.policy().Statement {
		for _, a := range s.Action {
			names[strings.TrimPrefix(a, "ec2:")] = true
		}
	}
	delete(names, "CreateTags")
	return slices.Sorted(maps.Keys(names))
}

// bound tells whether an action is done to an ENI that there is, so that the answer
// depends on its tags.
func bound(action string) bool {
	return !strings.HasPrefix(action, "Describe") && action != "CreateNetworkInterface"
}

// target is what the actions are tried on: an ENI that serves pods, as EC2 describes it, and
// for a new one the subnet that it would be in.
func (p *patient) target(ctx context.Context, n needs) (aws.Target, error) {
	self, err := p.pool.Cloud.Instance(ctx)
	if err != nil || n.mode == lease.ProvisionNone {
		return aws.Target{}, err
	}
	on := aws.Target{Instance: self.ID, SecurityGroups: n.pools[0].SecurityGroups, Tags: map[string]string{
		ipam.TagManaged: "true", ipam.TagInstance: self.ID, ipam.TagPool: poolName(n.pools[0].Pool)}}
	maps.Copy(on.Tags, n.pools[0].Tags)
	attached, err := p.pool.Cloud.DescribeENIs(ctx, aws.ByInstance(self.ID))
	if errors.Is(err, aws.ErrDenied) {
		err = nil // trying it says the same
	}
	for _, e := range attached {
		known := p.state.ENIs[e.ID]
		if on.Subnet == "" || e.Tags[ipam.TagManaged] != "" || known.Serving && !known.Foreign {
			on.Subnet = e.Subnet
		}
		if e.Tags[ipam.TagManaged] != "" || known.Serving && !known.Foreign {
			on.ENI, on.Attachment = e.ID, e.Attachment
		}
	}
	if n.mode != lease.ProvisionFull {
		return on, err
	}
	if fit, _, e := podSubnets(ctx, p.pool.Cloud, n.pools[0]); e == nil && len(fit) > 0 {
		on.Subnet = fit[0].ID
	}
	return on, err
}

// podSubnets lists the subnets in which the pool's next ENI could be.
func podSubnets(ctx context.Context, cloud *aws.Client, pool lease.Policy) (fit []aws.Subnet, zone string, err error) {
	all, zone, err := zoneSubnets(ctx, cloud)
	return slices.DeleteFunc(all, func(s aws.Subnet) bool { return !carriesTags(s.Tags, pool.SubnetTags) }), zone, err
}

// checkSubnets looks whether there is an address left where the next ENI would be.
func (p *patient) checkSubnets(ctx context.Context) ([]ailment, error) {
	if p.config == nil {
		return nil, nil // checkConfig says so
	}
	var found []ailment
	for _, pool := range p.config.Policies() {
		if pool.Provision != lease.ProvisionFull {
			continue // EC2 says when the subnet of an ENI is full, and the node need not see subnets
		}
		fit, zone, err := podSubnets(ctx, p.pool.Cloud, pool)
		if err != nil {
			return found, err
		}
		free, v4 := 0, false
		for _, s := range fit {
			free += s.Free
			v4 = v4 || s.CIDR.IsValid()
		}
		about := "pool " + poolName(pool.Pool)
		few := max(p.state.Instance.IPv4PerENI, pool.Warm.Min, 16)
		switch {
		case len(fit) == 0:
			found = append(found, ailment{Severity: severe, About: about, Means: fmt.Sprintf("no subnet of %s has the tags %v: there is none for a new ENI", zone, pool.SubnetTags),
				Do: "give a subnet these tags, or correct subnetTags; " + Name + " subnets shows those there are"})
		case v4 && free == 0:
			found = append(found, ailment{Severity: severe, About: about, Means: "its subnets in " + zone + " have no free address: " + subnetIDs(fit),
				Do: "give the VPC another subnet for pods, with the tags that subnetTags asks for"})
		case v4 && free < few:
			found = append(found, ailment{Severity: doubted, About: about, Means: fmt.Sprintf("its subnets in %s have %d free addresses, fewer than one ENI can take: %s", zone, free, subnetIDs(fit)),
				Do: "give the VPC another subnet for pods, with the tags that subnetTags asks for"})
		}
	}
	return found, nil
}

func subnetIDs(subnets []aws.Subnet) string {
	var ids []string
	for _, s := range subnets {
		ids = append(ids, s.ID)
	}
	return strings.Join(ids, ", ")
}
