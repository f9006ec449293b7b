// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about instances that can have no more ENIs. Two say so: the registry, by what
// it knows, and EC2, when it refuses one. Either may be out of date a moment later, because
// somebody has detached an ENI. So a growth that finds the instance full asks EC2 which ENIs
// are attached, and an ENI that is not takes no place.
//
// EC2 may refuse for a reason that its describes do not show: on many types, volumes take
// places of ENIs (EC2 user guide, "Volume limits for Nitro-based instances"). So a refusal
// counts for some minutes, lest every ADD makes an ENI and deletes it again, or until EC2
// shows fewer ENIs than when it refused.

// full says why the instance can have no more ENIs, by what the registry knows; nil if it can.
func (p *Pool) full(s *registry.State) error {
	limit := s.Instance.ENIs
	if p.Policy.MaxENIs > 0 {
		limit = min(limit, p.Policy.MaxENIs)
	}
	if s.Attached() >= limit {
		return fmt.Errorf("%w: %s has %d ENIs of at most %d%s", aws.ErrInstanceFull, s.Instance.ID, s.Attached(), limit, p.misfits(s))
	}
	if _, found := slotsOf(s, p.Policy.MinIndex, nil).next(); !found {
		return fmt.Errorf("%w: %s has %d ENIs, and no free device index for pods (interfaceIndex %d)", aws.ErrInstanceFull, s.Instance.ID, len(s.ENIs), p.Policy.MinIndex)
	}
	return nil
}

// refused says until when EC2's refusal of another ENI counts; nil if none does.
func refused(s *registry.State) error {
	if !time.Now().Before(s.Instance.FullUntil) {
		return nil
	}
	return fmt.Errorf("%w: EC2 has refused %s another ENI; this node knows of %d, and asks again after %s, or when one is detached",
		aws.ErrInstanceFull, s.Instance.ID, len(s.ENIs), s.Instance.FullUntil.Format(time.RFC3339))
}

// seemsFull reports whether EC2 is to be asked which ENIs are attached to a full instance,
// though the links of all of ours are there: its refusal may be out of date, or somebody
// else may have detached an ENI. EC2 is asked so twice a minute at most.
func seemsFull(s *registry.State) bool {
	const lately = 30 * time.Second
	others := refused(s) != nil
	for _, e := range s.ENIs {
		others = others || e.Foreign && !e.Detached
	}
	return others && time.Since(s.Instance.FullRead) >= lately
}

// errSlots is the [aws.ErrInstanceFull] that EC2 has not said: there is an ENI at each
// device index, as far as is known.
var errSlots = fmt.Errorf("%w: there is an ENI at each of its device indices", aws.ErrInstanceFull)

// noteFull writes down that EC2 has refused another ENI beside those that it shows, or shows
// one at each device index.
func (p *Pool) noteFull(ctx context.Context, attached []aws.ENI, least int, why error) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		shown := &registry.State{Instance: s.Instance}
		if _, free := slotsOf(shown, least, attached).next(); errors.Is(why, errSlots) && free {
			return // what is in the way, the registry knows
		}
		s.Instance.FullUntil, s.Instance.FullWith, s.Instance.FullRead = time.Now().Add(registry.MostFull), len(attached), time.Now()
	})
}
