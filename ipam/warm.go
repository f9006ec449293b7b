// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Refill is the name of the mark that an ADD leaves when its pool has fewer free
// addresses than the configuration wants. A path unit of systemd runs what fills it.
const Refill = "refill"

// refill leaves the mark. An ADD that has its address does not fail for it.
func (p *Pool) refill() {
	if err := p.Registry.Mark(Refill); err != nil {
		slog.Warn("nobody will refill the pool", "error", err)
	}
}

// Fill gets the pool as many free addresses as its configuration wants at least, and
// returns how many it has then.
func (p *Pool) Fill(ctx context.Context) (int, error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return 0, err
	}
	defer unlock()
	s, err := p.Registry.View()
	if err == nil && unknown(s) {
		err = p.Learn(ctx)
	}
	if err != nil {
		return 0, err
	}
	for {
		var has int
		var short bool
		err := p.update(ctx, func(s *registry.State) {
			now := time.Now()
			p.note(s)
			has, short = ready(s, p.Policy.Pool, now.Add(-p.Policy.ReuseWait)), p.short(s, now)
		})
		if err != nil || !short {
			return has, err
		}
		if err := p.grow(ctx); err != nil {
			return has, err
		}
	}
}

// short tells whether the pool has fewer free addresses than its configuration wants.
// What counts is IPv4: a pool without needs a prefix, which is enough for ever.
func (p *Pool) short(s *registry.State, now time.Time) bool {
	if slices.Contains(p.Policy.Families, IPv4) {
		return ready(s, p.Policy.Pool, now.Add(-p.Policy.ReuseWait)) < p.Policy.Warm.Min
	}
	_, addrs := candidates(s, p.Policy, now)
	return len(addrs) == 0 && p.Policy.Warm.Min > 0
}
