// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// forPods reports whether an ENI was made for pods, as EC2 describes it: by a growth, by an
// operator (new-interface, launch-template), who may as well give it the tag, or by the
// original plugin, which tells by the description alone.
func forPods(e aws.ENI) bool {
	return e.Tags[TagManaged] != "" || e.Tags[TagPool] != "" || e.Description == description(e.Instance)
}

// groupsOf are the security groups to remember of an ENI that EC2 has described: those of
// one that others have attached, see lease.Policy.Misfit. The boot ENI is the node's own.
func groupsOf(e aws.ENI) []string {
	if e.Index == 0 && e.Card == 0 || forPods(e) {
		return nil
	}
	return slices.Sorted(slices.Values(e.SecurityGroups))
}

// askWhose asks EC2 for the tags of the ENIs of which it could not be asked when they were
// learnt. Without an answer they serve nobody, and growth goes on.
func (p *Pool) askWhose(ctx context.Context, s *registry.State) (*registry.State, error) {
	const patience = 5 * time.Second
	notAsked := func(e registry.ENI) bool { return e.TagsUnknown == registry.NotAsked }
	if !slices.ContainsFunc(slices.Collect(maps.Values(s.ENIs)), notAsked) || p.Policy.Provision == lease.ProvisionNone {
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	enis, err := p.describeENIs(waiting, aws.ByInstance(s.Instance.ID))
	why := ""
	if err != nil {
		why = whyTagsUnknown(err)
	}
	err = p.Registry.Change(ctx, func(now *registry.State) {
		for _, e := range enis {
			if known, ok := now.ENIs[e.ID]; ok {
				now.ENIs[e.ID] = label(known, e)
			}
		}
		for id, e := range now.ENIs {
			if notAsked(e) && why != "" {
				e.TagsUnknown = why
				now.ENIs[id] = e
			}
		}
		s = now
	})
	return s, err
}

// askSubnets asks EC2 for the tags of the subnets of others' ENIs, where these decide
// whether pods get their addresses. Without an answer they serve nobody, and growth goes on.
func (p *Pool) askSubnets(ctx context.Context, s *registry.State) (*registry.State, error) {
	unclear := func(e registry.ENI) bool {
		return e.Pool == p.Policy.Pool && p.Policy.Serves(e) && p.Policy.Unclear(e)
	}
	asked := false
	for _, e := range s.ENIs {
		asked = asked || unclear(e)
	}
	if !asked {
		return s, nil
	}
	const patience = 5 * time.Second // growth can do without
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	subnets, err := p.describeSubnets(waiting, vpcOf(s), s.Instance.Zone)
	if err != nil {
		slog.Warn("EC2 did not list the subnets: ENIs that others have attached serve no pods until it does", "error", err)
		return s, nil
	}
	err = p.Registry.Change(ctx, func(now *registry.State) {
		for id, e := range now.ENIs {
			i := slices.IndexFunc(subnets, func(n aws.Subnet) bool { return n.ID == e.Subnet })
			if i >= 0 && unclear(e) {
				e.SubnetTags = subnets[i].Tags
				now.ENIs[id] = e
			}
		}
		s = now
	})
	return s, err
}

// misfits says which ENIs of others take a place and serve no pods, to add to an error.
func (p *Pool) misfits(s *registry.State) string {
	var all []string
	for id, e := range s.ENIs {
		if why := p.Policy.Misfit(e); why != "" && e.Pool == p.Policy.Pool {
			all = append(all, "; "+id+" serves no pods: "+why)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
