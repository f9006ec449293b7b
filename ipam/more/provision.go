// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is for commands of operators. The operator decides which ENIs and addresses the command gets from EC2.

// ENIFor returns an attached ENI for a Provision (see Provision of package ipam). The caller holds the lock of the
// Provision. The ENI is new, or it is the ENI of an earlier, unfinished Provision with the same spec.
func (p *Node) ENIFor(ctx context.Context, spec ENISpec) (id string, err error) {
	spec.Managed = false
	own := func(ctx context.Context, e aws.ENI) error { return p.finishOwn(ctx, e, spec) }
	err = p.withGrowLock(ctx, own, func(before, s *registry.State) error {
		if id, err = p.earlierENI(ctx, before, s, spec); err != nil || id != "" {
			return err
		}
		// Without this check, EC2 would create the ENI, and then refuse to attach it.
		attached, err := p.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
		if err != nil {
			return err
		}
		if len(attached) >= s.Instance.ENIs {
			return fmt.Errorf("too many adapters on this instance already: %w: %d ENIs, of %d that %s can have",
				aws.ErrInstanceFull, len(attached), s.Instance.ENIs, s.Instance.Type)
		}
		id, err = p.NewENI(ctx, spec)
		return err
	})
	if err != nil {
		return "", err
	}
	return id, nil
}

// Allocate assigns n more addresses to an ENI, or fewer if fewer fit. It tries the ENIs with room in the order of card
// and device index. If EC2 refuses only the change of one ENI (call.GoesOn), Allocate tries the next ENI. Allocate
// returns the changed ENI and its new addresses, which are then free. It leaves out ENIs for which pods have asked,
// ENIs whose link is in a pod, and ENIs that serve no pods of their pool. The argument policies has the policies of the
// node's pools, if they are known.
func (p *Node) Allocate(ctx context.Context, n int, policies ...lease.Policy) (id string, got []netip.Addr, err error) {
	err = p.withGrowLock(ctx, p.abandonENI, func(_, s *registry.State) error {
		var rs []lease.Place
		var why []error
		inPods := s.Exclusive()
		for _, q := range policies {
			of := *p
			of.Policy = q
			if s, err = of.AskSubnets(ctx, s); err != nil {
				return err
			}
		}
		for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
			e := s.ENIs[id]
			if e.OnRequest || inPods[id] || !p.Policy.Serves(e) || e.Draining || e.Retired || e.Foreign ||
				e.NoLink(time.Now()) || book.Room(s, e, lease.IPv4) <= 0 {
				continue
			}
			if misfit := misfitOf(e, policies, p.Policy); misfit != "" {
				why = append(why, fmt.Errorf("%s serves no pods: %s", id, misfit))
				continue
			}
			rs = append(rs, lease.Place{ID: id, ENI: e})
		}
		slices.SortFunc(rs, func(a, b lease.Place) int {
			return cmp.Or(cmp.Compare(a.Card, b.Card), cmp.Compare(a.Index, b.Index))
		})
		for _, r := range rs {
			if got, err = p.assignAddrs(ctx, r.ID, lease.IPv4,
				fixedCount(min(n, book.Room(s, r.ENI, lease.IPv4)))); err == nil {
				id = r.ID
				return nil
			}
			if !call.IsFull(err) && !call.GoesOn(err, r.Managed) {
				return err
			}
			why = append(why, err)
		}
		if aws.NotAllowed(errors.Join(why...)) {
			// Perhaps only a permission is missing. Then the error below, that no ENI has room, would be wrong.
			return errors.Join(why...)
		}
		//lint:ignore ST1005 the original's words
		none := fmt.Errorf("Unable to allocate - no IPs available on any interfaces: "+
			"none of the ENIs from index %d on has room", p.Policy.MinIndex)
		return errors.Join(append(why, none)...)
	})
	return id, got, err
}

// misfitOf returns why no pod gets addresses of an ENI, or "" if pods get them. If none of the policies is for the
// ENI's pool, misfitOf uses the policy fallback.
func misfitOf(e registry.ENI, policies []lease.Policy, fallback lease.Policy) (why string) {
	policies = slices.DeleteFunc(slices.Clone(policies), func(q lease.Policy) bool { return q.Pool != e.Pool })
	if len(policies) == 0 {
		return fallback.Misfit(e)
	}
	for _, q := range policies {
		misfit := q.Misfit(e)
		if misfit == "" {
			return ""
		}
		why = cmp.Or(why, misfit)
	}
	return why
}

// withGrowLock takes the lock "grow", and updates the registry. It then finishes the calls of earlier processes
// (resumeCalls), and calls the function work. The arguments of work are the states of the registry before and after
// resumeCalls.
func (p *Node) withGrowLock(
	ctx context.Context, onUnattached func(context.Context, aws.ENI) error, work func(before, s *registry.State) error,
) error {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return err
	}
	defer unlock()
	if err := errors.Join(p.ForgetRefusals(ctx), p.Learn(ctx)); err != nil {
		return err
	}
	before, err := p.Registry.View()
	if err != nil {
		return err
	}
	if _, err := p.resumeCalls(ctx, onUnattached); err != nil {
		return err
	}
	s, err := p.DescribeInstance(ctx)
	if err != nil {
		return err
	}
	return work(before, s)
}
