// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Fill gets addresses until the pool has as many free ones as its configuration wants. It
// returns how many are free then. ADDs that wait have their turn before it asks for more.
func (p *Pool) Fill(ctx context.Context) (has int, err error) {
	if err := p.begin(ctx); err != nil {
		return 0, err
	}
	p.yields = true
	defer func() { p.yields = false }()
	for had, idle := -1, 0; ; {
		var short bool
		has, short, err = p.fillOnce(ctx, has)
		if err != nil && !errors.Is(err, errGivesWay) || !short {
			return has, err
		}
		if idle++; has > had {
			had, idle = has, 0
		}
		if p.giveWay(ctx); idle < rounds-1 {
			continue
		}
		if err := sleep(ctx, p.backoff(idle-rounds+1), "EC2 was asked, nothing failed, and others have taken what came"); err != nil {
			return has, err
		}
	}
}

// begin updates what Fill has to know.
func (p *Pool) begin(ctx context.Context) error {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return err
	}
	defer unlock()
	s, err := p.Registry.View()
	if err == nil && lease.Unknown(s) {
		err = p.Learn(ctx)
	}
	if err != nil {
		return err
	}
	p.renewPeers(ctx)
	p.Look(ctx) // lest it gets addresses in the place of some that are back
	return nil
}

// fillOnce asks EC2 once if the pool has too few free addresses. It returns how many there were, and whether that was too few.
// If that cannot be counted, it returns had.
func (p *Pool) fillOnce(ctx context.Context, had int) (has int, short bool, err error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return had, false, err
	}
	defer unlock()
	err = p.Registry.Change(ctx, func(s *registry.State) {
		now := time.Now()
		p.Note(s)
		has, short = lease.Ready(s, p.Policy.Pool, now.Add(-p.Policy.ReuseWait)), p.Short(s, now)
	})
	if err == nil && short {
		err = p.grow(ctx)
	}
	return has, short, err
}

// giveWay lets the ADDs that wait have their turn. Who releases a lock and takes it again at once may be ahead of them.
func (p *Pool) giveWay(ctx context.Context) {
	const most, look = time.Second, 10 * time.Millisecond
	for end := time.Now().Add(most); time.Now().Before(end); {
		if s, err := p.Registry.View(); err != nil || !anyWaits(s, anyPool) || sleep(ctx, look, "") != nil {
			return
		}
	}
}

// errGivesWay ends what holds the lock of growth and is of no use to an ADD that waits for this lock.
var errGivesWay = errors.New("EC2 throttles, and an ADD waits that may need another call: it has its turn first")

// yield waits up to a minute before a call that EC2 has throttled is repeated, if no ADD waits here and the node has
// pods. EC2 counts the calls of the whole account, and other nodes may have pods that wait. It ends as soon as an ADD
// waits, with errGivesWay if that is one of another pool. A node without pods has just started, and its pods come soon.
//
// A collection does not wait, and ends with errGivesWay if any ADD waits.
func (p *Pool) yield(ctx context.Context, action string) error {
	if p.collects {
		s, err := p.Registry.View()
		if err == nil && anyWaits(s, anyPool) {
			err = errGivesWay
		}
		return err
	}
	const most, look = time.Minute, time.Second
	for end := time.Now().Add(most); p.yields && time.Now().Before(end); {
		s, err := p.Registry.View()
		switch {
		case err != nil:
			return err
		case anyWaits(s, func(pool string) bool { return pool != p.Policy.Waits() }):
			return errGivesWay
		case s.Leases.Len() == 0 || anyWaits(s, anyPool):
			return nil
		}
		text, hint := lease.Throttled(action, end)
		if err := sleep(ctx, look, text); err != nil {
			return plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
		}
	}
	return nil
}

// anyWaits reports whether an ADD of such a pool waits for an address.
func anyWaits(s *registry.State, of func(pool string) bool) bool {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Until.After(now) && of(w.Pool) {
			return true
		}
	}
	return false
}

func anyPool(string) bool { return true }
