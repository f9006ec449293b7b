// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An incompleteError matches [aws.ErrNoMetadata], but does not have its text: the metadata service has answered.
type incompleteError struct{}

func (incompleteError) Error() string {
	return "metadata lists no ENI with all attributes that this node needs"
}

func (incompleteError) Is(target error) bool { return target == aws.ErrNoMetadata }

// InUse returns the addresses that the kernel shows in use, including the node's own addresses.
func (p *Node) InUse() (lease.Used, error) {
	used := p.Used()
	own, err := p.Host.AllAddrs()
	if err != nil {
		return used, err
	}
	used.AddNode(own)
	return used, nil
}

// Learn adds to the registry what the metadata service and the kernel show of this node's addresses. It removes only
// addresses that EC2 has never confirmed: see withDescription. Metadata forgets ENIs, shows new ENIs late, and still
// shows detached ENIs. So Learn checks each address that metadata shows, and does not change other addresses.
//
// An address without a lease gets a lease without a key if it is in use. Any other new address cools. But if no pod of
// the node has had an address yet, the new address is free at once.
//
// If no process of the node changes anything in EC2, and there is only one pool, Learn does not ask EC2 for tags. A
// collection asks later, so that nodes that start together do not ask at the same time.
func (p *Node) Learn(ctx context.Context) error {
	_, err := p.LearnWith(ctx, !p.TrustsMetadata() || p.Policy.Pools,
		func(enis []aws.ENI) lease.Used { return p.Used(macs(enis)...) })
	return err
}

// LearnWith does what Learn does, and returns the ENIs that metadata shows. It asks EC2 only if ask is true. The
// function usedOf gets these ENIs, and returns the addresses in use. If usedOf does not read the namespaces, it returns
// a partial [lease.Used], and each address counts as used.
func (p *Node) LearnWith(ctx context.Context, ask bool, usedOf func([]aws.ENI) lease.Used) ([]aws.ENI, error) {
	instance, err := p.Cloud.Instance(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask metadata for the identity of this instance: %w", err)
	}
	if err := p.setOtherAside(ctx, instance.ID); err != nil {
		return nil, err
	}
	enis, err := p.Cloud.ENIs(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask metadata for this instance's ENIs: %w", err)
	}
	shareVPCCIDRs(enis)
	described, tagsUnknown := map[string]aws.ENI(nil), registry.NotAsked
	if ask {
		if described, tagsUnknown, err = p.describeNew(ctx, instance.ID, enis); err != nil {
			return nil, err
		}
	}
	used := usedOf(enis)
	// Metadata perhaps does not show the ENIs of running pods yet. But a veth pair on the node also proves that pods
	// have had addresses.
	links, paired, err := p.linksOf(enis)
	if err != nil {
		return nil, fmt.Errorf("list the links of the node: %w", err)
	}
	return enis, p.Registry.Update(ctx, func(s *registry.State) error {
		now, first := time.Now(), s.Blank() && !anyUsed(enis, used) && !paired && !p.Registry.Marked(ReleasedMark)
		if s.Instance.ID == "" {
			// The registry is new, so it lacks the intents of earlier calls to EC2.
			s.Rebuilt = registry.Rebuilt{Since: now, Unconfirmed: !first, Changes: !p.TrustsMetadata()}
		}
		if s.Instance.ID != instance.ID || s.Instance.Type != instance.Type { // drops the limits of the old type
			s.Instance = registry.Instance{ID: instance.ID, Type: instance.Type, Zone: instance.Zone}
		}
		s.Instance.Boot = registry.BootID()
		l := discovery{s, described, tagsUnknown, p.doubtsMetadata(tagsUnknown), used, links, now, first,
			lease.StaleMetadata}
		for _, e := range enis {
			l.learnENI(e)
		}
		if len(s.ENIs) == 0 {
			return fmt.Errorf("ask metadata for this instance's ENIs: %w", incompleteError{})
		}
		return nil
	})
}

// linksOf returns the links of the ENIs by MAC address. It returns paired as true if the node may have veth pairs of
// pods. It looks for such pairs only if the registry is blank or cannot be read.
func (p *Node) linksOf(enis []aws.ENI) (links map[string]nl.Link, paired bool, _ error) {
	s, err := p.Registry.View()
	if err != nil || s.Blank() {
		all, err := p.Host.Links()
		return nl.ByMAC(all), nl.InGroup(all, nl.IsPair) != "", err
	}
	names := map[string]string{}
	for _, e := range enis {
		names[e.MAC] = s.ENIs[e.ID].Link
	}
	links, err = p.Host.LinksOf(names)
	return links, true, err
}

// UsedIfNew reads the namespaces only if metadata shows something that the registry does not have. Otherwise it returns
// a partial [lease.Used]: each address counts as used. A collection reads the namespaces again before it releases
// anything.
func (p *Node) UsedIfNew(enis []aws.ENI) lease.Used {
	if s, err := p.Registry.View(); err == nil && !slices.ContainsFunc(enis,
		func(e aws.ENI) bool { return isNew(s, e) }) {
		return lease.Used{Partial: true}
	}
	return p.Used(macs(enis)...)
}

func macs(enis []aws.ENI) (macs []string) {
	for _, e := range enis {
		macs = append(macs, e.MAC)
	}
	return macs
}

// isNew reports whether the registry lacks the ENI, or one of the ENI's addresses or prefixes.
func isNew(s *registry.State, e aws.ENI) bool {
	known, ok := s.ENIs[e.ID]
	if !ok || known.Foreign {
		return !ok
	}
	newAddr := func(a netip.Addr) bool { return !s.Leases.Has(a) && !s.Free.Has(a) && !book.NodesOwn(e, known, a) }
	newPrefix := func(c netip.Prefix) bool { return !known.HasPrefix(c) }
	return slices.ContainsFunc(slices.Concat(e.Addrs, e.IPv6Addrs), newAddr) ||
		slices.ContainsFunc(slices.Concat(e.Prefixes, e.IPv6Prefixes), newPrefix)
}

// describeNew asks EC2 for all ENIs of the instance. It asks only if the tags of an ENI are unknown, or if hasNews
// returns true for an ENI. If it does not ask, described is nil. The tags name the pool of an ENI, and may forbid
// changes. If EC2 does not answer, tagsUnknown says why. With several pools, a missing answer about tags is an error.
// The boot ENI needs no tags.
func (p *Node) describeNew(
	ctx context.Context, instance string, enis []aws.ENI,
) (described map[string]aws.ENI, tagsUnknown string, _ error) {
	s, err := p.Registry.View()
	if err != nil {
		s = &registry.State{} // Update will set the file aside
	}
	enough := func(e registry.ENI) bool {
		// If the node changes nothing in EC2, and its role has no permission for this call, collections do not repeat
		// the call.
		refused := e.TagsUnknown == registry.NotAllowed && p.TrustsMetadata() && !p.Policy.Pools
		return e.TagsUnknown == "" || refused
	}
	tagged := func(e aws.ENI) bool {
		was, ok := s.ENIs[e.ID]
		return ok && enough(was) || e.Index <= 0 || e.Boot
	}
	lacksTags := slices.ContainsFunc(enis, func(e aws.ENI) bool { return !tagged(e) })
	isChanged := func(e aws.ENI) bool { return hasNews(s, e) }
	if !lacksTags && !(p.doubtsMetadata("") && slices.ContainsFunc(enis, isChanged)) {
		return nil, "", nil
	}
	needs, waiting := lacksTags && p.Policy.Pools, ctx
	if !needs {
		const patience = 5 * time.Second // the node works without the answer, and the next growth asks EC2 again
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, patience)
		defer cancel()
	}
	all, err := p.DescribeENIs(waiting, aws.ByInstance(instance))
	switch {
	case err == nil:
		described = map[string]aws.ENI{}
		for _, e := range all {
			described[e.ID] = e
		}
		return described, "", nil
	case needs:
		return nil, "", fmt.Errorf("ask EC2 for the ENIs' tags, because the tags name the ENIs' pools: %w", err)
	case ctx.Err() != nil:
		return nil, "", fmt.Errorf("ask EC2 for the ENIs of this instance: %w", err)
	case !lacksTags && !aws.NotAllowed(err):
		slog.Warn("metadata shows addresses that are new to this node, and EC2 did not answer whether the "+
			"ENIs have them", "error", err)
		return nil, registry.NotAsked, nil
	}
	return nil, p.whyTagsUnknown(err), nil
}

// whyTagsUnknown returns why EC2 has not returned the tags of ENIs: see TagsUnknown of [registry.ENI]. On a node that
// changes nothing in EC2, it logs no warning. All ENIs of such a node serve pods, so the node needs no route to EC2.
func (p *Node) whyTagsUnknown(err error) string {
	denied, trusts := aws.NotAllowed(err), p.TrustsMetadata()
	switch {
	case trusts && denied:
		return registry.NotAllowed
	case trusts:
		return registry.NotAsked
	case denied:
		slog.Warn("the role does not allow ec2:DescribeNetworkInterfaces, so this node does not know the tags of its "+
			"ENIs. ENIs with unknown tags serve pods, but the node does not release them or their addresses",
			"error", err)
		return registry.NotAllowed
	}
	slog.Warn("EC2 did not return the tags of the ENIs. ENIs with unknown tags serve no pods and are not released "+
		"until EC2 returns their tags",
		"error", err)
	return registry.NotAsked
}

// LearnShown adds to the registry the attached ENIs that the registry lacks, because metadata does not show them yet.
// Without these ENIs, the node would count too few ENIs, and would try to attach one ENI too many.
func (p *Node) LearnShown(ctx context.Context, s *registry.State, attached []aws.ENI) error {
	shown := map[string]aws.ENI{}
	for _, e := range attached {
		if _, known := s.ENIs[e.ID]; !known && e.Index > 0 {
			shown[e.ID] = e
		}
	}
	if len(shown) == 0 {
		return nil
	}
	instance, err := p.Cloud.Instance(ctx)
	if err != nil {
		return fmt.Errorf("ask metadata which ENI is the boot ENI: %w", err)
	}
	subnets, err := p.DescribeSubnets(ctx, book.VPCOf(s), s.Instance.Zone)
	if err != nil {
		return err
	}
	used := p.Used(macs(attached)...)
	return p.Registry.Change(ctx, func(s *registry.State) {
		l := discovery{State: s, described: shown, used: used, now: time.Now(), lag: LagOfEC2}
		for _, e := range shown {
			if i := slices.IndexFunc(subnets, func(n aws.Subnet) bool { return n.ID == e.Subnet }); i >= 0 {
				e.CIDR, e.IPv6CIDR, e.Boot = subnets[i].CIDR, subnets[i].IPv6CIDR, e.MAC == instance.MAC
				l.learnENI(e)
			}
		}
	})
}

// anyUsed returns true if a namespace has an address of the ENIs, or if the node has a host route to such an address.
// It ignores the node's own IPv6 addresses: if the node gets an address by DHCPv6, the kernel itself makes a host route
// to this address.
func anyUsed(enis []aws.ENI, used lease.Used) bool {
	return used.Partial || slices.ContainsFunc(enis, func(e aws.ENI) bool {
		return used.Any(e.MAC, func(a netip.Addr) bool { return book.Carries(e, a) && !used.Node[a] })
	})
}

// AdoptAttached records attached ENIs in the registry, from EC2's descriptions enis. It records all ENIs at once,
// because each read of the namespaces takes long if there are many pods.
func (p *Node) AdoptAttached(ctx context.Context, enis []aws.ENI) error {
	if len(enis) == 0 {
		return nil
	}
	used := p.Used(macs(enis)...)
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, e := range enis {
			was, known := s.ENIs[e.ID]
			book.Record(s, e, was.Managed)
			if book.Begun(s, e.ID) && e.Tags[book.TagManaged] != "true" && !was.Managed {
				book.MarkProvisioning(s, e.ID, true)
			}
			s.ENIs[e.ID] = withDescription(s, e.ID, e)
			AddAll(s, e, used)
			book.GiveChosen(s, e.ID)
			if !known {
				book.Serve(s, e.ID, book.PoolOf(e))
			}
		}
	})
}
