// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// ZoneSubnets lists the subnets in which this instance could have an ENI. They are in the boot ENI's VPC, and in the
// instance's zone. The list has EC2's order.
func ZoneSubnets(ctx context.Context, cloud *aws.Client) (all []aws.Subnet, vpc, zone string, err error) {
	i, err := cloud.Instance(ctx)
	if err != nil {
		return nil, "", "", err
	}
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		return nil, "", "", err
	}
	boot := slices.IndexFunc(enis, func(e aws.ENI) bool { return e.MAC == i.MAC })
	if boot < 0 {
		return nil, "", "", errors.New("metadata does not list the boot ENI " + i.MAC)
	}
	vpc = enis[boot].VPC
	all, err = cloud.Subnets(ctx, vpc, i.Zone)
	return all, vpc, i.Zone, err
}

// PodSubnets lists the subnets in which the pool's next ENI could be. If there is no such subnet, the error is
// [more.ErrNoSubnet].
func PodSubnets(ctx context.Context, cloud *aws.Client, pool lease.Policy) (fit []aws.Subnet, zone string, err error) {
	all, vpc, zone, err := ZoneSubnets(ctx, cloud)
	if err != nil {
		return nil, "", err
	}
	fit, err = more.Fit(all, vpc, zone, pool.SubnetTags, pool.Families)
	return fit, zone, err
}

// Attached returns a state with the ENIs that this instance has now, without those that the registry marks as foreign
// or draining. The addresses come from metadata. All addresses except the node's own addresses count as free, even
// addresses of pods. If tagged is true, and the registry lacks an ENI other than the boot ENI, Attached asks EC2 for
// the tags.
func Attached(ctx context.Context, l aws.Limits, tagged bool) (*registry.State, error) {
	cloud := aws.New(aws.Options{})
	i, err := cloud.Instance(ctx)
	if err != nil {
		return nil, err
	}
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		return nil, err
	}
	were := map[string]registry.ENI{}
	if s, err := cli.ViewRegistry(); err == nil && s.Instance.ID == i.ID {
		were = s.ENIs
	}
	described := map[string]aws.ENI{}
	if tagged && slices.ContainsFunc(enis, func(e aws.ENI) bool { _, ok := were[e.ID]; return !ok && !e.Boot }) {
		all, err := cloud.DescribeENIs(ctx, aws.ByInstance(i.ID))
		if err != nil {
			return nil, fmt.Errorf("EC2 did not report the tags of the ENIs, which name the pools of the ENIs: %w", err)
		}
		for _, e := range all {
			described[e.ID] = e
		}
	}
	s := more.Launched(l, nil)
	clear(s.ENIs)
	for _, e := range enis {
		if e.Index >= 0 && (e.CIDR.IsValid() || e.IPv6CIDR.IsValid()) { // otherwise metadata is not complete yet
			addAttached(s, e, were[e.ID], described[e.ID])
		}
	}
	return s, nil
}

// addAttached adds an ENI that metadata shows. Values that metadata lacks come from the ENI in the registry (recorded).
// If recorded is empty, these values come from EC2's description of the ENI (described). This description may be empty,
// too.
func addAttached(s *registry.State, e aws.ENI, recorded registry.ENI, described aws.ENI) {
	if recorded.MAC == "" {
		recorded = book.Label(registry.ENI{Boot: e.Boot}, described)
	}
	if recorded.Foreign || recorded.Draining {
		return
	}
	s.ENIs[e.ID] = registry.ENI{Boot: e.Boot, MAC: e.MAC, Index: e.Index, Card: e.Card, CIDR: e.CIDR, CIDR6: e.IPv6CIDR,
		Pool: recorded.Pool, Managed: recorded.Managed, Retired: recorded.Retired, Groups: recorded.Groups,
		Tags: recorded.Tags, SubnetTags: recorded.SubnetTags, PoolUnknown: recorded.PoolUnknown}
	for _, a := range slices.Concat(e.Addrs, e.IPv6Addrs) {
		book.AddAddrs(s, e.ID, []netip.Addr{a}, time.Time{})
		if book.NodesOwn(e, s.ENIs[e.ID], a) {
			s.Free.Delete(a)
		}
	}
	book.AddPrefixes(s, e.ID, slices.Concat(e.Prefixes, e.IPv6Prefixes), time.Time{})
}

// Limits asks EC2 for the limits of this instance's type. If EC2 does not report the limits, for example because EC2
// throttles, the limits come from the registry.
func Limits(ctx context.Context) (aws.Limits, error) {
	cloud := aws.New(aws.Options{})
	i, err := cloud.Instance(ctx)
	if err != nil {
		return aws.Limits{}, err
	}
	l, err := cloud.Limits(ctx, i.Type)
	if err == nil {
		return l, nil
	}
	if known, ok := knownLimits(i); ok {
		return known, nil
	}
	return l, err
}

// knownLimits returns the instance's limits from the registry. These limits never change.
func knownLimits(i aws.Instance) (l aws.Limits, ok bool) {
	s, err := cli.ViewRegistry()
	if err != nil || s.Instance.ID != i.ID || s.Instance.Type != i.Type || s.Instance.ENIs == 0 {
		return l, false
	}
	n := s.Instance
	l = aws.Limits{ENIs: n.ENIs, IPv4PerENI: n.IPv4PerENI, IPv6PerENI: n.IPv6PerENI, NoPrefixes: n.NoPrefixes,
		Cards: n.Cards}
	if len(l.Cards) == 0 {
		l.Cards = []int{l.ENIs}
	}
	return l, true
}
