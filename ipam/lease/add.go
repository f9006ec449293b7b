// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Add answers an ADD. If no address is free, it gets one from the source. fresh reports whether
// the attachment had no address before. It is set even if Add fails.
func Add(ctx context.Context, r *plugin.Request[Config], from Source) (res *types100.Result, fresh bool, err error) {
	err = withPool(ctx, r, 0, func(ctx context.Context, p *Pool, policies []Policy) (err error) {
		all := make([]*types100.Result, len(policies))
		fresh, err = p.Each(ctx, ownerOf(r, 0), policies, func(ctx context.Context, o Owner) (isNew bool, err error) {
			all[o.NIC], isNew, err = p.add(ctx, o, from)
			return isNew, err
		})
		if err != nil {
			return err
		}
		res = all[0]
		for _, further := range all[1:] {
			join(res, further)
		}
		return nil
	})
	return res, fresh, err
}

// Each calls add for each interface of an attachment, by the policy of the interface. An interface
// whose address or ENI the pod has chosen comes first: EC2 may show that the pod cannot have it, and
// nothing is changed for the others by then. If add fails, the interfaces lose their addresses,
// unless the attachment had addresses before. fresh reports that it had none.
func (p *Pool) Each(ctx context.Context, o Owner, policies []Policy, add func(context.Context, Owner) (fresh bool, err error)) (fresh bool, err error) {
	if len(policies) > 1 {
		if err := p.refusesAny(o, policies); err != nil {
			return false, err
		}
	}
	done := 0
	for _, first := range []bool{true, false} {
		for nic, policy := range policies {
			if policy.Choice.names() != first {
				continue
			}
			p.Policy, o.NIC = policy, nic
			isNew, err := add(ctx, o)
			fresh = fresh || isNew && done == 0
			if err != nil {
				return fresh, errors.Join(inWords(nic, policies, err), p.undo(ctx, o, policies, fresh))
			}
			done++
		}
	}
	return fresh, nil
}

// add leases addresses for one interface, and returns its part of the result.
func (p *Pool) add(ctx context.Context, o Owner, from Source) (res *types100.Result, fresh bool, err error) {
	take := func(ctx context.Context, o Owner) (Allocation, error) { return p.Acquire(ctx, o, from) }
	a, link, err := p.Obtain(ctx, o, take)
	if err != nil {
		return nil, a.Fresh, fmt.Errorf("acquire an address: %w", err)
	}
	return a.Result(link, p.Policy), a.Fresh, nil
}

// inWords names the interface in an error, if the pod has several.
func inWords(nic int, policies []Policy, err error) error {
	if len(policies) == 1 {
		return err
	}
	return fmt.Errorf("interface %d: %w", nic+1, err)
}

// undo makes the addresses of all interfaces free again, because one got none. No pod has had them
// meanwhile. If the attachment had addresses before, it keeps all.
func (p *Pool) undo(ctx context.Context, o Owner, policies []Policy, fresh bool) (failed error) {
	if !fresh || len(policies) == 1 {
		return nil
	}
	for o.NIC = range policies {
		failed = errors.Join(failed, p.putBack(context.WithoutCancel(ctx), o))
	}
	return failed
}

// withPool calls f with the pool of this node, and with the policies of the interfaces that the
// request is about. The context of f ends after limit. If limit is 0, it ends after addTimeout.
func withPool(ctx context.Context, r *plugin.Request[Config], limit time.Duration, f func(context.Context, *Pool, []Policy) error) error {
	policies, err := r.Config.Interfaces(r.Network, r.IfName, r.Pod)
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = policies[0].Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p, err := open(ctx, policies[0])
	if err != nil {
		return err
	}
	defer p.Close()
	return f(ctx, p, policies)
}
