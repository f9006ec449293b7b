// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// AskTags asks EC2 for the tags of the node's ENIs, if the TagsUnknown of an ENI is NotAsked. If EC2 does not answer,
// this ENI serves no pods, and the growth continues.
func (p *Node) AskTags(ctx context.Context, s *registry.State) (*registry.State, error) {
	const patience = 5 * time.Second
	notAsked := func(e registry.ENI) bool { return e.TagsUnknown == registry.NotAsked }
	if !slices.ContainsFunc(slices.Collect(maps.Values(s.ENIs)), notAsked) ||
		p.Policy.Provision == lease.ProvisionNone {
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	enis, err := p.DescribeENIs(waiting, aws.ByInstance(s.Instance.ID))
	why := ""
	if err != nil {
		why = p.whyTagsUnknown(err)
	}
	err = p.Registry.Change(ctx, func(now *registry.State) {
		for _, e := range enis {
			if _, ok := now.ENIs[e.ID]; ok {
				now.ENIs[e.ID] = withDescription(now, e.ID, e)
			}
		}
		for id, e := range now.ENIs {
			if notAsked(e) && why != "" {
				e.Doubt(tagsUnknownOf(e, why))
				now.ENIs[id] = e
			}
		}
		s = now
	})
	return s, err
}

// AskSubnets asks EC2 for the tags of subnets, if these tags decide whether an ENI fits the pool: see
// lease.Policy.Unclear. If EC2 does not answer, the ENI serves no pods, and the growth continues.
func (p *Node) AskSubnets(ctx context.Context, s *registry.State) (*registry.State, error) {
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
	const patience = 5 * time.Second // the growth can continue without the answer
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	subnets, err := p.DescribeSubnets(waiting, book.VPCOf(s), s.Instance.Zone)
	if err != nil {
		slog.Warn("EC2 did not list the subnets: ENIs that others have attached serve no pods until EC2 lists the "+
			"subnets",
			"error", err)
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

// Misfits returns a part of an error text. The text names the pool's ENIs that take a slot but serve no pods, and says
// why. Such an ENI does not fit the configuration, or an operator has retired it (cni-tool drain-interface).
func (p *Node) Misfits(s *registry.State) string {
	var all []string
	for id, e := range s.ENIs {
		if why := p.Policy.Unserved(e); why != "" && e.Pool == p.Policy.Pool {
			all = append(all, "; "+id+" serves no pods: "+why)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "")
}
