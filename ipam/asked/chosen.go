// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package asked

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The functions of this file get an address that a pod has chosen. The node asks EC2 which ENI has the address, and
// then assigns the address. Between these two calls, another ENI may get the address, and a pod may use it there. So
// the node never sets AllowReassignment. With AllowReassignment, EC2 would take the address from that ENI.

// GrowChosen gets the addresses that the pod has chosen. It assigns all of them to the same ENI of the pool. If no ENI
// can take these addresses, GrowChosen creates an ENI in their subnet. The next call of GrowChosen then assigns the
// addresses. The argument deniedENIs has the ENIs that EC2 has refused to change.
func (p *Node) GrowChosen(ctx context.Context, s *registry.State, deniedENIs ...string) error {
	at, found := p.placeFor(s, deniedENIs)
	// If an ENI was found, call checkTaken before SubnetFor: while another node keeps the address, checkTaken fails,
	// and SubnetFor need not call EC2.
	if found {
		if corrected, err := p.checkTaken(ctx, s, at.Subnet); corrected || err != nil {
			return err
		}
	}
	subnet, err := p.SubnetFor(ctx, s, at.Subnet)
	if err != nil {
		return err
	}
	if !found {
		if corrected, err := p.checkTaken(ctx, s, subnet.ID); corrected || err != nil {
			return err
		}
	}
	if !found {
		return cmp.Or(p.onOtherENIError(s), p.AddENIIn(ctx, s, subnet.ID))
	}
	for _, f := range p.Policy.Families {
		err := p.assignMissing(ctx, s, at, f)
		if _, final := errors.AsType[*plugin.Error](err); !final && call.GoesOn(err, at.Managed) && !isAboutAddr(err) {
			if again := p.GrowChosen(ctx, s, append(deniedENIs, at.ID)...); again != nil {
				return errors.Join(again, err)
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// placeFor returns an ENI of the pool that has the chosen addresses, or can take them. It never returns one of the
// deniedENIs.
func (p *Node) placeFor(s *registry.State, deniedENIs []string) (lease.Place, bool) {
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		if !slices.Contains(deniedENIs, at.ID) && !slices.ContainsFunc(p.Policy.Families,
			func(f lease.Family) bool { return !p.canServe(s, at, f) }) {
			return at, true
		}
	}
	return lease.Place{}, false
}

// canServe reports whether an ENI has an address of a family for the pod, or can take such an address.
func (p *Node) canServe(s *registry.State, at lease.Place, f lease.Family) bool {
	if a, chosen := p.Policy.Choice.Addr(f); chosen {
		return canTake(s, at, a)
	}
	one := p.Policy
	one.Families = []lease.Family{f}
	return len(at.Pick(s, one, time.Now())) > 0 || book.Room(s, at.ENI, f) > 0
}

// onOtherENIError returns an error if an ENI of this node has a chosen address. placeFor has found that this ENI cannot
// serve the pod now. A new ENI would not help, because the new ENI could not get the address.
func (p *Node) onOtherENIError(s *registry.State) error {
	for _, a := range p.Policy.Choice.Addrs {
		id, e := s.ENIOf(a)
		switch {
		case e.NoLink(time.Now()):
			return plugin.Errorf(plugin.CodeTryAgain, lease.HintNoLink,
				"the pod asks for the address %s, which is on %s. The link of this ENI is not on the node", a, id)
		case id != "":
			return plugin.Errorf(plugin.CodeTryAgain,
				"ask for addresses that one ENI can have, or make room on this ENI",
				"the pod asks for the address %s, which is on %s. This ENI cannot get the other address that the "+
					"pod needs", a, id)
		}
	}
	return nil
}

// canTake reports whether an ENI has the address or can take it.
func canTake(s *registry.State, at lease.Place, a netip.Addr) bool {
	if id, _ := s.ENIOf(a); id != "" {
		return id == at.ID
	}
	return (at.CIDR.Contains(a) || at.CIDR6.Contains(a)) && book.Room(s, at.ENI, nl.FamilyOf(a)) > 0
}

// checkTaken asks EC2 which ENIs of the subnet have the chosen addresses, as single addresses or in prefixes. A chosen
// address may be on an ENI of this node, although the registry does not show it on that ENI. In this case, checkTaken
// corrects the registry, and returns true. If a chosen address is on a foreign ENI, or on an ENI that is not in the
// registry, checkTaken calls followAddr.
func (p *Node) checkTaken(ctx context.Context, s *registry.State, subnet string) (corrected bool, _ error) {
	enis, err := p.DescribeENIs(ctx, aws.BySubnet(subnet))
	if err != nil {
		return false, err
	}
	for _, a := range p.Policy.Choice.Addrs {
		i := slices.IndexFunc(enis, func(e aws.ENI) bool { return book.Carries(e, a) })
		if id, _ := s.ENIOf(a); i < 0 || id == enis[i].ID {
			continue
		}
		was, ours := s.ENIs[enis[i].ID]
		switch gone, given := s.Gone[a]; {
		case ours && given && time.Since(gone) < known.LagOfEC2:
			continue // this node has just released the address, and EC2 perhaps still shows it on the ENI
		case ours && !was.Foreign:
			return true, p.Compare(ctx, enis[i].ID)
		}
		if err := p.followAddr(ctx, enis[i], a); err != nil {
			return false, err
		}
	}
	return false, nil
}

// assignMissing assigns the chosen address of a family to an ENI. If the pod has chosen no address of the family, and
// the ENI has no free address of this family, assignMissing gets any address.
func (p *Node) assignMissing(ctx context.Context, s *registry.State, at lease.Place, f lease.Family) error {
	a, chosen := p.Policy.Choice.Addr(f)
	if !chosen {
		one := p.Policy
		one.Families = []lease.Family{f}
		if len(at.Pick(s, one, time.Now())) > 0 {
			return nil
		}
		return p.MoreOf(ctx, s, at, f)
	}
	if at.Has(a) {
		return nil
	}
	return p.assignChosen(ctx, at.ID, a)
}

// assignChosen asks EC2 to assign the chosen address to an ENI. A repeated call assigns no second address, because the
// call names the address.
func (p *Node) assignChosen(ctx context.Context, eni string, a netip.Addr) error {
	action, do := book.AssignAction(nl.FamilyOf(a)), p.Cloud.AssignAddr
	if a.Is6() {
		do = p.Cloud.AssignIPv6Addr
	}
	err := p.Call(ctx, action, call.Object{ENI: eni, Handled: isAboutAddr},
		call.NewIntent(registry.Intent{Action: action, ENI: eni, Addr: a, Pod: p.Policy.Choice.Pod}),
		func(*registry.State, string) (func(*registry.State), error) {
			return func(s *registry.State) {
				since := time.Time{}
				// The address cools for all pods except its owner. So no other pod can take the address before the
				// owner takes it.
				if pod := p.Policy.Choice.Pod; pod.Name != "" && !s.Rebuilt.Unconfirmed {
					since, s.Owners[a] = time.Now(), pod
				}
				book.AddAddrs(s, eni, []netip.Addr{a}, since)
			}, do(ctx, eni, a)
		})
	if errors.Is(err, aws.ErrInUse) && !aws.MaybeDone(err) {
		// checkTaken has not seen the address on the other ENI, because EC2's descriptions lag.
		return plugin.Errorf(plugin.CodeHeld, hintHeld,
			"the pod asks for the address %s, which another ENI has: %w", a, err)
	}
	return p.CorrectAfter(ctx, eni, err)
}

// isAboutAddr reports whether EC2's refusal to assign a chosen address may be about the address, and not about the ENI.
func isAboutAddr(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && (errors.Is(err, aws.ErrInUse) || strings.HasPrefix(e.Code, "InvalidParameter") ||
		strings.HasPrefix(e.Code, "InvalidIPAddress"))
}
