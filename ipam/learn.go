// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// staleMetadata is for how long the metadata service may list an address that has
// left the ENI. Minutes were seen; we double what its users saw.
const staleMetadata = 10 * time.Minute

// Learn adds to the registry what the metadata service and the kernel know of this
// node's addresses. It never takes anything away: the metadata service forgets
// ENIs, lists them late, and lists what is gone, so its word is a hint, and its
// silence means nothing. An address found in use gets a lease, if it has none,
// without a key; any other that is new to the registry cools first, except on a node
// on which no pod has an address yet.
func (p *Pool) Learn(ctx context.Context) error {
	instance, err := p.Cloud.Instance(ctx)
	if err != nil {
		return fmt.Errorf("learn about this instance: %w", err)
	}
	enis, err := p.Cloud.ENIs(ctx)
	if err != nil {
		return fmt.Errorf("learn about this instance's ENIs: %w", err)
	}
	used := UsedAddrs()
	return p.Registry.Update(ctx, func(s *registry.State) error {
		if s.Instance.ID != instance.ID {
			s.Instance = registry.Instance{ID: instance.ID, Type: instance.Type, Zone: instance.Zone}
		}
		l := lesson{s, used, time.Now(), s.Blank() && !anyUsed(enis, used)}
		for _, e := range enis {
			l.learn(e)
		}
		if len(s.ENIs) == 0 {
			return fmt.Errorf("learn about this instance's ENIs: %w: it shows none with an IPv4 subnet", aws.ErrNoMetadata)
		}
		return nil
	})
}

// anyUsed tells whether an address of the ENIs is in a namespace.
func anyUsed(enis []aws.ENI, used Used) bool {
	return used.Partial || slices.ContainsFunc(enis, func(e aws.ENI) bool {
		return slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return used.By[a] != "" })
	})
}

// A lesson is a Learn under way.
type lesson struct {
	*registry.State
	used  Used
	now   time.Time
	first bool // nothing was ever used here
}

// learn takes over what metadata says of an ENI.
func (l lesson) learn(e aws.ENI) {
	if e.Index < 0 || !e.CIDR.IsValid() {
		return // not all of it is there yet, or it has no IPv4
	}
	known := l.ENIs[e.ID]
	known.MAC, known.Index, known.Card = e.MAC, e.Index, e.Card
	known.Subnet, known.CIDR, known.VPC, known.Read = e.Subnet, e.CIDR, e.VPC, l.now
	for _, a := range e.Addrs {
		if gone, ok := l.Gone[a]; ok && l.now.Sub(gone) < staleMetadata {
			continue
		}
		if id, _ := l.ENIOf(a); id != "" && id != e.ID {
			continue // it has moved, and metadata has not noticed
		}
		if !slices.Contains(known.Addrs, a) {
			known.Addrs = append(known.Addrs, a)
		}
		l.learnAddr(e, a)
	}
	l.ENIs[e.ID] = known
	vpc := l.VPCs[e.VPC]
	if len(e.VPCCIDRs) > 0 {
		vpc.CIDRs = e.VPCCIDRs
	}
	l.VPCs[e.VPC] = vpc
}

// learnAddr decides what an address of an ENI is: leased, free, or cooling.
func (l lesson) learnAddr(e aws.ENI, a netip.Addr) {
	_, leased := l.Leases[a]
	_, free := l.Free[a]
	netns := l.used.By[a]
	switch {
	case leased || e.Index == 0 && a == e.Addrs[0]: // the latter is the node's own
	case netns != "":
		delete(l.Free, a)
		l.Leases[a] = registry.Lease{NetNS: netns, ENI: e.ID, Bound: true, Since: l.now}
	case free || l.used.Partial:
	case l.first:
		l.Free[a] = time.Time{}
	default:
		l.Free[a] = l.now
	}
}
