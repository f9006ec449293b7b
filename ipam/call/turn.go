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

// AwaitTurn waits until this node may call the action again.
func (p *Node) AwaitTurn(ctx context.Context, action string) error {
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

// Sleep waits for the duration d. If the deadline of ctx is earlier, Sleep fails at once. The argument reason says why
// the caller waits, for the error's text.
func Sleep(ctx context.Context, d time.Duration, reason string) error {
	if d <= 0 {
		return nil
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return fmt.Errorf("%s: %w", reason, context.DeadlineExceeded)
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", reason, ctx.Err())
	}
}

// Backoff returns how long to wait after the n-th throttled answer in a row. The time is random (full jitter), so that
// throttled nodes do not ask again together. It is at most 1 second for n = 0, then at most 2, 4 and 8 seconds. With a
// limit of 32 seconds, EC2 would refuse fewer calls, but the last of 200 nodes would wait too long (docs/fleet.md).
func (p *Node) Backoff(n int) time.Duration {
	return p.Cloud.Jitter(min(time.Second<<min(n, 10), registry.MostBackoff))
}

// ErrGivesWay means that a process ends its work under the lock "grow", because an ADD waits for this lock. The work
// does not help this ADD: the process gets addresses for other pods, or finishes old calls for a collection.
var ErrGivesWay = errors.New("EC2 throttles, and a waiting ADD may need a call to EC2: this process lets the ADD go " +
	"first")

// yieldToADDs lets ADDs go first, before a process repeats a call that EC2 has throttled. Outside the modes Ahead and
// Finishes, it does nothing.
//
// In the mode Ahead, yieldToADDs waits up to a minute. EC2 limits the calls of the whole account, and pods of other
// nodes may also wait. The wait ends as soon as an ADD of this node waits. If this ADD waits for an address of another
// pool, the error is ErrGivesWay. A node without pods does not wait: it has just started, and its first pods come soon.
//
// In the mode Finishes, yieldToADDs does not wait. If any ADD waits, the error is ErrGivesWay.
func (p *Node) yieldToADDs(ctx context.Context, action string) error {
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
