// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
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
	p.yields = true
	defer func() { p.yields = false }()
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

// yield waits up to a minute before a call that EC2 has throttled is repeated, if no ADD waits here and the node has
// pods. EC2 counts the calls of the whole account, and other nodes may have pods that wait. It ends as soon as an ADD
// waits. A node without pods has just started, and its pods come soon.
func (p *Pool) yield(ctx context.Context, action string) error {
	const most, look = time.Minute, time.Second
	for end := time.Now().Add(most); p.yields && time.Now().Before(end); {
		s, err := p.Registry.View()
		if err != nil || s.Leases.Len() == 0 || anyWaits(s) {
			return err
		}
		text, hint := lease.Throttled(action, end)
		if err := sleep(ctx, look, text); err != nil {
			return plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
		}
	}
	return nil
}

// anyWaits reports whether an ADD of any pool waits for an address.
func anyWaits(s *registry.State) bool {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Until.After(now) {
			return true
		}
	}
	return false
}
