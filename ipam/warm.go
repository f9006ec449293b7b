// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"log/slog"
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
	if err == nil && len(s.ENIs) == 0 {
		err = p.Learn(ctx)
	}
	if err != nil {
		return 0, err
	}
	for {
		var has int
		err := p.update(ctx, func(s *registry.State) {
			p.note(s)
			has = ready(s, p.Policy.Pool, time.Now().Add(-p.Policy.ReuseWait))
		})
		if err != nil || has >= p.Policy.Warm.Min {
			return has, err
		}
		if err := p.grow(ctx); err != nil {
			return has, err
		}
	}
}
