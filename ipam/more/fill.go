// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// fillOnce asks EC2 for addresses of the families in which the ENI has no free address. It also asks for IPv4 addresses
// if the pool has fewer free addresses than it wants.
func (p *Node) fillOnce(ctx context.Context, s *registry.State, at lease.Place) error {
	now := time.Now()
	if f, lacks := noCIDR(at, p.Policy.Families); lacks {
		return fmt.Errorf("%s counts as full, because the subnet %s of this ENI has no CIDR of %v: %w", at.ID,
			at.Subnet, f, aws.ErrENIFull)
	}
	// The variable full has the reason why the ENI gets no further IPv4 addresses, although the pool wants more. If
	// another family gets addresses, fillOnce ignores this reason, because a pod can use the ENI's free IPv4 address.
	var full error
	asked := false
	for _, f := range p.Policy.Families {
		one := p.Policy
		one.Families = []lease.Family{f}
		has := len(at.Pick(s, one, now)) > 0
		if has && (f == lease.IPv6 || !p.Short(s, now)) {
			continue
		}
		switch err := p.MoreOf(ctx, s, at, f); {
		case has && (call.IsFull(err) || call.GoesOn(err, at.Managed)):
			full = err
		case err != nil:
			return err
		default:
			asked = true
		}
	}
	if asked {
		return nil
	}
	return full
}

// FillENI gets addresses for an ENI. If EC2 refuses, fillOnce corrects the registry. If the registry then shows less
// room on the ENI, FillENI tries again with fewer addresses.
func (p *Node) FillENI(ctx context.Context, s *registry.State, at lease.Place) error {
	err := p.fillOnce(ctx, s, at)
	if !call.IsFull(err) || !errors.Is(err, aws.ErrENIFull) {
		return err
	}
	now, e := p.Registry.View()
	if e != nil || len(now.ENIs[at.ID].Addrs)+len(now.ENIs[at.ID].Prefixes) <= len(at.Addrs)+len(at.Prefixes) {
		return err
	}
	at.ENI = now.ENIs[at.ID]
	return p.fillOnce(ctx, now, at)
}

// MoreOf asks EC2 for addresses of a family. For IPv6, it asks for one prefix, which is always enough. For IPv4, it
// asks for prefixes only if the configuration has prefixDelegation. If the subnet has no prefix left, or the instance
// type does not support prefixes, MoreOf asks for single addresses.
func (p *Node) MoreOf(ctx context.Context, s *registry.State, at lease.Place, f lease.Family) error {
	most := book.Room(s, at.ENI, f)
	if most <= 0 {
		return fmt.Errorf("%s has no room for %v: %w", at.ID, f, aws.ErrENIFull)
	}
	if err := call.StandingRefusal(s, book.AssignAction(f), at.ID); err != nil {
		return err
	}
	if err := p.gatherADDs(ctx, p.gatherLimit(f, most), pauseAssign); err != nil {
		return err
	}
	if p.usesPrefixes(s, f) {
		if err := p.assignPrefixes(ctx, at.ID, f, most); !isPrefixRefusal(err) {
			return err
		}
	}
	n := 0
	_, err := p.assignAddrs(ctx, at.ID, f, func(s *registry.State) int { n = min(p.wantedAddrs(s), most); return n })
	if call.IsFull(err) && errors.Is(err, aws.ErrSubnetFull) && n > 1 {
		_, err = p.assignAddrs(ctx, at.ID, f, fixedCount(1)) // EC2 gives all or nothing
	}
	return err
}

// usesPrefixes reports whether an ENI gets prefixes of a family instead of single addresses.
func (p *Node) usesPrefixes(s *registry.State, f lease.Family) bool {
	return (f == lease.IPv6 || p.Policy.Prefixes) && !s.Instance.NoPrefixes
}

// gatherLimit returns how many addresses one call can bring. When the waiting ADDs want this number, gatherADDs stops
// waiting. The argument room is the number of addresses or prefixes that the ENI can still take.
func (p *Node) gatherLimit(f lease.Family, room int) int {
	switch {
	case f == lease.IPv6:
		return 1 // one prefix is enough for all ADDs
	case p.Policy.Prefixes:
		return room * book.BlockSize
	}
	return room
}

func fixedCount(n int) func(*registry.State) int { return func(*registry.State) int { return n } }

// isPrefixRefusal reports whether EC2 has refused only prefixes, so that it may still give single addresses. EC2 gives
// no prefix if the subnet is fragmented, or if the instance is not a Nitro instance.
func isPrefixRefusal(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return !aws.MaybeDone(err) && (errors.Is(err, aws.ErrSubnetFull) || ok && e.Code == "UnsupportedOperation")
}

// assignAddrs asks EC2 for addresses on an ENI. Right before the call, addrCount returns their number. The call has no
// client token, so no process can repeat it if the answer is lost. Instead, resumeCalls asks which addresses the ENI
// has.
func (p *Node) assignAddrs(
	ctx context.Context, eni string, f lease.Family, addrCount func(*registry.State) int,
) ([]netip.Addr, error) {
	action, do := book.AssignAction(f), p.Cloud.Assign
	if f == lease.IPv6 {
		do = p.Cloud.AssignIPv6
	}
	var got []netip.Addr
	err := p.Call(ctx, action, call.Object{ENI: eni}, call.NewIntent(registry.Intent{Action: action, ENI: eni}),
		func(s *registry.State, _ string) (record func(*registry.State), err error) {
			got, err = do(ctx, eni, addrCount(s))
			return func(s *registry.State) { book.AddAddrs(s, eni, got, time.Time{}) },
				cmp.Or(err, p.StrangeNow(ctx, eni, s.ENIs[eni], got, nil))
		})
	return got, p.CorrectAfter(ctx, eni, err)
}

// assignPrefixes asks EC2 for prefixes, as assignAddrs does for addresses. For IPv4, it asks for as many prefixes as
// the waiting ADDs need, at most maxPrefixes. For IPv6, it asks for one prefix.
func (p *Node) assignPrefixes(ctx context.Context, eni string, f lease.Family, maxPrefixes int) error {
	action, do := book.AssignAction(f), p.Cloud.AssignPrefixes
	if f == lease.IPv6 {
		do = p.Cloud.AssignIPv6Prefixes
	}
	n := 1
	err := p.Call(ctx, action, call.Object{ENI: eni, Handled: isPrefixRefusal},
		call.NewIntent(registry.Intent{Action: action, ENI: eni}),
		func(s *registry.State, _ string) (record func(*registry.State), err error) {
			if f == lease.IPv4 {
				n = min(book.BlocksFor(p.wantedAddrs(s)), maxPrefixes)
			}
			got, err := do(ctx, eni, n)
			return func(s *registry.State) { book.AddPrefixes(s, eni, got, time.Now()) },
				cmp.Or(err, p.StrangeNow(ctx, eni, s.ENIs[eni], nil, got))
		})
	if n > 1 && isPrefixRefusal(err) && errors.Is(err, aws.ErrSubnetFull) {
		return p.assignPrefixes(ctx, eni, f, 1) // EC2 gives all or nothing
	}
	return p.CorrectAfter(ctx, eni, err)
}

// CorrectAfter corrects the registry if err shows that the registry is wrong, and returns err.
func (p *Node) CorrectAfter(ctx context.Context, eni string, err error) error {
	switch {
	case errors.Is(err, aws.ErrSubnetFull):
		p.ForgetSubnets()
	case errors.Is(err, aws.ErrNotFound):
		return errors.Join(err, p.Missing(ctx, eni))
	case errors.Is(err, aws.ErrENIFull):
		return errors.Join(err, p.Compare(ctx, eni))
	}
	return err
}
