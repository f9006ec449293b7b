// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"fmt"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// Add answers an ADD. If no address is free, it gets one from the source. fresh reports whether
// the attachment had no address before. It is set even if Add fails.
func Add(ctx context.Context, r *plugin.Request[Config], from Source) (res *types100.Result, fresh bool, err error) {
	err = withPool(ctx, r, 0, func(ctx context.Context, p *Pool) error {
		take := func(ctx context.Context, o Owner) (Allocation, error) { return p.Acquire(ctx, o, from) }
		a, link, err := p.Obtain(ctx, OwnerOf(r), take)
		if fresh = a.Fresh; err != nil {
			return fmt.Errorf("acquire an address: %w", err)
		}
		res = a.Result(link, p.Policy)
		return nil
	})
	return res, fresh, err
}

// withPool calls f with the pool that serves the request. The context of f ends after limit. If
// limit is 0, it ends after addTimeout.
func withPool(ctx context.Context, r *plugin.Request[Config], limit time.Duration, f func(context.Context, *Pool) error) error {
	policy, err := r.Config.Choose(r.Pod)
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = policy.Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	p, err := open(ctx, policy)
	if err != nil {
		return err
	}
	defer p.Close()
	return f(ctx, p)
}
