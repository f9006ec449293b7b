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
		fresh, err = p.Each(ctx, ownerOf(r, 0), policies, func(ctx context.Context, o Owner) (isNew bool, err error) {
			one, isNew, err := p.add(ctx, o, from)
			if res == nil {
				res = one
			} else if err == nil {
				join(res, one)
			}
			return isNew, err
		})
		return err
	})
	if err != nil {
		res = nil
	}
	return res, fresh, err
}

// Each calls add for each interface of an attachment, by the policy of the interface. If add fails
// for one, the interfaces before it lose their addresses, unless the attachment had addresses
// before. fresh reports that it had none.
func (p *Pool) Each(ctx context.Context, o Owner, policies []Policy, add func(context.Context, Owner) (fresh bool, err error)) (fresh bool, err error) {
	for nic, policy := range policies {
		p.Policy, o.NIC = policy, nic
		isNew, err := add(ctx, o)
		fresh = fresh || isNew && nic == 0
		if err != nil {
			return fresh, errors.Join(inWords(nic, policies, err), p.undo(ctx, o, nic, fresh))
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

// undo makes the addresses of the first interfaces free again, because a later one got none. No
// pod has had them meanwhile. If the attachment had addresses before, it keeps all.
func (p *Pool) undo(ctx context.Context, o Owner, nics int, fresh bool) (failed error) {
	if !fresh {
		return nil
	}
	for o.NIC = range nics {
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
