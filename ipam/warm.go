// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Fill gets addresses until the pool has as many free ones as its configuration wants. It
// returns how many are free then.
func (p *Pool) Fill(ctx context.Context) (int, error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return 0, err
	}
	defer unlock()
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err != nil {
		return 0, err
	}
	p.renewPeers(ctx)
	p.Look(ctx) // lest it gets addresses in the place of some that are back
	for had, idle := -1, 0; ; {
		var has int
		var short bool
		err := p.Registry.Change(ctx, func(s *registry.State) {
			now := time.Now()
			p.Note(s)
			has, short = lease.Ready(s, p.Policy.Pool, now.Add(-p.Policy.ReuseWait)), p.Short(s, now)
		})
		if err != nil || !short {
			return has, err
		}
		if idle++; has > had {
			had, idle = has, 0
		}
		if idle >= rounds {
			err = sleep(ctx, p.backoff(idle-rounds), "EC2 was asked, nothing failed, and others have taken what came")
		}
		if err == nil {
			err = p.grow(ctx)
		}
		if err != nil {
			return has, err
		}
	}
}
