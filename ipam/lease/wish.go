// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ADD that finds no free address leaves a wish in the registry before it waits for
// the lock "grow". The one that has the lock asks EC2 for as many addresses as there are
// wishes, so what it asks for is right if all of a burst are there before it does.

// wait leaves the wish of an owner, as old as it is.
func (p *Pool) wait(s *registry.State, o Owner, was registry.Wish, now, until time.Time) {
	if was.Since.IsZero() {
		was.Since = now
	}
	s.Wishes[o.Key.String()] = registry.Wish{Pool: p.Policy.Pool, Since: was.Since, Until: until}
}

// GiveUp takes the wish of an owner back, lest somebody asks EC2 for what nobody needs
// any more. That of a process that was killed ends at its deadline.
func (p *Pool) GiveUp(ctx context.Context, o Owner) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { delete(s.Wishes, o.Key.String()) })
}

// Concern is under which key: a pool may have another policy in another network.
func (p *Pool) Concern(o Owner) string { return o.Network + "/" + p.Policy.Pool }
