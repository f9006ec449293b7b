// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package call

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Turn waits until this node may call the action again.
func (p *Node) Turn(ctx context.Context, action string) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	until := s.NotBefore[action]
	text, hint := lease.Throttled(action, until)
	if err = Sleep(ctx, time.Until(until), text); err != nil {
		return plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
	}
	return nil
}

// Sleep waits for d. If the deadline of ctx is earlier, it fails at once. The error says what
// it waited for.
func Sleep(ctx context.Context, d time.Duration, what string) error {
	if d <= 0 {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return fmt.Errorf("%s: %w", what, context.DeadlineExceeded)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

// Backoff is the wait after the n-th throttled answer in a row: full jitter up to 1, 2, 4, 8 seconds. So nodes that
// were throttled together do not return together. With up to 32 seconds, EC2 would refuse only a third of the calls.
// But the last of 200 nodes would wait for half as long again (docs/fleet.md).
func (p *Node) Backoff(n int) time.Duration {
	return p.Cloud.Jitter(min(time.Second<<min(n, 10), registry.MostBackoff))
}

// ErrGivesWay ends a process that holds the lock of growth, if an ADD waits for this lock and the process does not help
// it.
var ErrGivesWay = errors.New("EC2 throttles, and an ADD waits that may need another call: the ADD goes first")

// yield waits up to a minute before a call that EC2 has throttled is repeated, if no ADD waits here and the node has
// pods. EC2 counts the calls of the whole account, and other nodes may have pods that wait. yield ends as soon as an
// ADD waits. If the ADD is of another pool, it ends with ErrGivesWay. A node without pods has just started, and its
// pods come soon.
//
// A collection does not wait, and ends with ErrGivesWay if any ADD waits.
func (p *Node) yield(ctx context.Context, action string) error {
	if p.Mode.Finishes {
		s, err := p.Registry.View()
		if err == nil && book.AnyWaits(s, book.AnyPool) {
			err = ErrGivesWay
		}
		return err
	}
	const most, look = time.Minute, time.Second
	for end := time.Now().Add(most); p.Mode.Ahead && time.Now().Before(end); {
		s, err := p.Registry.View()
		switch {
		case err != nil:
			return err
		case book.AnyWaits(s, func(pool string) bool { return pool != p.Policy.Waits() }):
			return ErrGivesWay
		case s.Leases.Len() == 0 || book.AnyWaits(s, book.AnyPool):
			return nil
		}
		text, hint := lease.Throttled(action, end)
		if err := Sleep(ctx, look, text); err != nil {
			return plugin.Errorf(plugin.CodeTryAgain, hint, "%w", err)
		}
	}
	return nil
}
