// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Add leases the addresses for an ADD, and returns the ADD's result. If no address is free, it gets one from the
// Source. The result since is the time when the last lease of this ADD began, even if Add fails. If the attachment had
// an address before this ADD, since is zero.
func Add(
	ctx context.Context, r *plugin.Request[Config], from Source,
) (res *types100.Result, since time.Time, err error) {
	err = withPool(ctx, r, 0, func(ctx context.Context, p *Pool, policies []Policy) error {
		all, last := make([]*types100.Result, len(policies)), time.Time{}
		fresh, err := p.Each(ctx, ownerOf(r, 0), policies, func(ctx context.Context, p *Pool, o Owner) (bool, error) {
			one, a, err := p.addInterface(ctx, o, from)
			all[o.NIC], last = one, cmp.Or(a.Since, time.Now())
			r.Waited = r.Waited || a.Waited
			return a.Fresh, err
		})
		if fresh {
			since = last
		}
		if err != nil {
			return err
		}
		res = all[0]
		for _, further := range all[1:] {
			appendInterface(res, further)
		}
		return nil
	})
	return res, since, err
}

// Each calls the function add once for every interface of an attachment. The pool in this call has the interface's
// policy. If the call fails for one of several interfaces, Each ends the leases of all interfaces. But if the
// attachment had addresses before this ADD, all leases stay. The result fresh is true if the attachment had no address
// before this ADD.
//
// Interfaces with chosen addresses come first: if the pod cannot have such an address, nothing has changed for the
// other interfaces yet. Interfaces with a chosen ENI come last. If they came first, each repetition of a failing ADD
// would attach and detach the ENI.
func (p *Pool) Each(
	ctx context.Context, o Owner, policies []Policy, add func(context.Context, *Pool, Owner) (fresh bool, err error),
) (fresh bool, err error) {
	if len(policies) > 1 {
		if err := p.anyRefusal(o, policies); err != nil {
			return false, err
		}
	}
	done := 0
	for turn := range 3 {
		for nic, policy := range policies {
			if policy.Choice.leaseOrder() != turn {
				continue
			}
			o.NIC = nic
			isNew, err := add(ctx, p.withPolicy(policy), o)
			fresh = fresh || isNew && done == 0
			if err != nil {
				return fresh, errors.Join(interfaceError(nic, policies, err), p.freeAllAddrs(ctx, o, policies, fresh))
			}
			done++
		}
	}
	if err := p.checkComplete(o, policies); err != nil {
		return fresh, errors.Join(err, p.freeAllAddrs(ctx, o, policies, fresh))
	}
	return fresh, nil
}

// checkComplete returns an error if an interface has lost its lease. An interface loses its lease if the registry is
// lost while the ADD runs. Without the error, this pod would use addresses that other pods can get.
func (p *Pool) checkComplete(o Owner, policies []Policy) error {
	if len(policies) == 1 {
		return nil
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	for nic := range policies {
		if len(s.HeldBy(o.Key, nic)) == 0 {
			return plugin.Errorf(plugin.CodeTryAgain, "the runtime repeats the ADD",
				"the registry was lost while the pod got its %d interfaces: interface %d has no address any more",
				len(policies), nic+1)
		}
	}
	return nil
}

// addInterface leases addresses for one interface, and returns the interface's part of the result.
func (p *Pool) addInterface(ctx context.Context, o Owner, from Source) (*types100.Result, Allocation, error) {
	take := func(ctx context.Context, o Owner) (Allocation, error) { return p.Acquire(ctx, o, from) }
	a, link, err := p.Obtain(ctx, o, take)
	if err != nil {
		return nil, a, fmt.Errorf("acquire an address: %w", err)
	}
	if p.Policy.Routed {
		return a.Routed(link, p.Policy, o.IfName, o.NetNS), a, nil
	}
	return a.Result(link, p.Policy), a, nil
}

// interfaceError returns err with the number of the interface, if the pod has several interfaces.
func interfaceError(nic int, policies []Policy, err error) error {
	if len(policies) == 1 {
		return err
	}
	return fmt.Errorf("interface %d: %w", nic+1, err)
}

// freeAllAddrs makes the addresses of all interfaces free again, because one interface got no address. If the
// attachment had addresses before this ADD, it keeps all its addresses.
func (p *Pool) freeAllAddrs(ctx context.Context, o Owner, policies []Policy, fresh bool) (failed error) {
	if !fresh || len(policies) == 1 {
		return nil
	}
	for o.NIC = range policies {
		failed = errors.Join(failed, p.freeAddrs(context.WithoutCancel(ctx), o))
	}
	return failed
}

// withPool calls f with the pool of this node, and with the policies of the request's interfaces. The argument limit is
// the time after which the context of f ends. If limit is 0, the context ends after the addTimeout of the
// configuration.
func withPool(
	ctx context.Context, r *plugin.Request[Config], limit time.Duration, f func(context.Context, *Pool, []Policy) error,
) error {
	policies, err := r.Config.Interfaces(r.Network, r.IfName, r.Pod)
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = policies[0].Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p, err := openPool(ctx, policies[0])
	if err != nil {
		return err
	}
	defer p.Close()
	return f(ctx, p, policies)
}
