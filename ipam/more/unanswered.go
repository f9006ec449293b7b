// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about an interrupted Provision of package ipam: it was killed, got no answer from EC2, or did not see
// its ENI's link. If an operator repeats the Provision, the new Provision continues with the same ENI. If it made
// another ENI, the node would have two ENIs, and no collection would delete them.
//
// For a short time after a change, EC2's answers may not show the change. During this time (known.Settled), the node
// trusts the registry's record of the change. If the registry lacks the result of a call, the Provision waits until EC2
// has settled.

// earlierENI returns the ENI of an earlier Provision with the same spec, or "". The argument s is the latest state. The
// argument before is the state in which this process began to finish the calls of earlier processes.
func (p *Node) earlierENI(ctx context.Context, before, s *registry.State, spec ENISpec) (string, error) {
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		e := s.ENIs[id]
		_, had := before.ENIs[id]
		if e.Origin() != registry.Operator || e.Draining || e.Index < spec.MinIndex ||
			had && !e.Provisioning && !book.Begun(before, id) {
			continue
		}
		seen, err := p.describeWhenShown(ctx, id, e.Grown)
		if err != nil {
			return "", err
		}
		justAttached := seen.Instance == "" && time.Since(e.Grown) < known.Settled
		if seen.Instance != s.Instance.ID && !justAttached {
			continue
		}
		if book.Untagged(seen) && !e.Provisioning && !book.Begun(before, id) {
			continue // no tag, mark or intent names a Provision: the original plugin may have made the ENI
		}
		switch is, err := p.matchesSpec(ctx, s, seen, spec); {
		case err != nil:
			return "", err
		case is && book.Begun(s, id) && !seen.DeleteOnTermination:
			return id, p.ensureDeleteOnTermination(ctx, seen)
		case is:
			return id, nil
		}
	}
	for _, token := range slices.Sorted(maps.Keys(s.Intents)) {
		i := s.Intents[token]
		if _, known := s.ENIs[i.ENI]; known || i.Action != book.AttachAction {
			continue
		}
		if id, err := p.finishUnrecorded(ctx, s, i, spec); err != nil || id != "" {
			return id, err
		}
	}
	return "", nil
}

// describeWhenShown returns EC2's description of an ENI that last changed at changedAt. It asks again until EC2 shows
// the ENI, or known.Settled has passed since changedAt. If EC2 never shows the ENI, describeWhenShown returns the zero
// value.
func (p *Node) describeWhenShown(ctx context.Context, id string, changedAt time.Time) (aws.ENI, error) {
	for {
		enis, err := p.DescribeENIs(ctx, aws.ByID(id))
		switch {
		case err != nil && !errors.Is(err, aws.ErrNotFound):
			return aws.ENI{}, err
		case len(enis) > 0:
			return enis[0], nil
		case time.Since(changedAt) >= known.Settled:
			return aws.ENI{}, nil
		}
		if err := call.Sleep(ctx, time.Second, "wait for EC2 to show "+id); err != nil {
			return aws.ENI{}, err
		}
	}
}

// matchesSpec reports whether a Provision with this spec may have created the ENI for this instance. It compares the
// tags, the security groups and the subnet.
func (p *Node) matchesSpec(ctx context.Context, s *registry.State, e aws.ENI, spec ENISpec) (bool, error) {
	groups := slices.Sorted(slices.Values(spec.SecurityGroups))
	if book.MadeFor(e) != s.Instance.ID || !book.Untagged(e) && e.Tags[book.TagManaged] != fmt.Sprint(spec.Managed) ||
		book.PoolOf(e) != spec.Pool ||
		!slices.Equal(slices.Sorted(slices.Values(e.SecurityGroups)), slices.Compact(groups)) {
		return false, nil
	}
	subnets, err := p.ZoneSubnets(ctx, book.VPCOf(s), s.Instance.Zone)
	if err != nil {
		return false, err
	}
	fit, err := p.suitableSubnets(s, subnets, spec)
	return err == nil && slices.ContainsFunc(fit, func(n aws.Subnet) bool { return n.ID == e.Subnet }), nil
}

// finishUnrecorded continues an earlier Provision. Its intent is i, and names an ENI that resumeCalls has not found. If
// the ENI is attached in the end, finishUnrecorded returns the ENI's ID.
func (p *Node) finishUnrecorded(
	ctx context.Context, s *registry.State, i registry.Intent, spec ENISpec,
) (string, error) {
	for began := time.Now(); ; {
		e, err := p.describeWhenShown(ctx, i.ENI, i.Since)
		if err != nil || e.ID == "" || e.Instance != s.Instance.ID && e.Status != "available" {
			return "", err
		}
		if is, err := p.matchesSpec(ctx, s, e, spec); err != nil || !is {
			return "", err
		}
		err = p.adoptAll(ctx, s, []aws.ENI{e}, p.reattach)
		// ErrInUse means that the ENI is attached, but that EC2 does not show the attachment yet.
		if errors.Is(err, aws.ErrInUse) && time.Since(began) < known.Settled {
			err = call.Sleep(ctx, time.Second, "wait for EC2 to show where "+i.ENI+" is")
			if err == nil {
				continue
			}
		}
		if err != nil {
			return "", err
		}
		s, err := p.Registry.View()
		if err != nil || s.ENIs[i.ENI].Index < spec.MinIndex {
			return "", err // there was no slot for the ENI, or its device index is too low
		}
		return i.ENI, nil
	}
}

// finishOwn attaches an ENI that an earlier Provision with the same spec has begun to make. finishOwn deletes an ENI of
// a growth. An ENI of another Provision stays, because finishOwn does not know the MinIndex of that Provision. At an
// index below that MinIndex, the ENI would serve no pods.
func (p *Node) finishOwn(ctx context.Context, e aws.ENI, spec ENISpec) error {
	if e.Tags[book.TagManaged] == "true" {
		return p.abandonENI(ctx, e)
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	if is, err := p.matchesSpec(ctx, s, e, spec); err != nil || !is {
		return err
	}
	return p.reattach(ctx, e)
}
