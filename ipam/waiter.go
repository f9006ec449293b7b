// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// waiting counts the ADDs that wait for an address of the pool, and says when the last
// of them has come.
func (p *Pool) waiting(s *registry.State) (n int, last time.Time) {
	now := time.Now()
	for _, w := range s.Waiters {
		if w.Pool != p.Policy.Pool || !w.Until.After(now) {
			continue
		}
		n++
		if w.Since.After(last) {
			last = w.Since
		}
	}
	return n, last
}

// want is how many addresses to ask for: one for each ADD that waits, at least
// ipBatchSize, and as many as are to be kept ready; but no more than maxPods need.
func (p *Pool) want(s *registry.State) int {
	if p.Policy.Batch == 0 {
		return max(s.Instance.IPv4PerENI, 1)
	}
	waiting, _ := p.waiting(s)
	n := min(max(waiting+p.Policy.Warm.Min, p.Policy.Batch), p.Policy.More(s))
	return max(n, waiting, 1)
}

// gather waits until a burst of ADDs has come whole, before EC2 is asked: what comes
// later costs another call, which takes some 100 ms, and a token of a bucket that the
// whole account shares. It ends when none has come for a moment, when there are enough
// for the most that one call can bring, or after a second: still less than it takes
// EC2 to make an ENI. An ADD that is alone hardly waits, and not at all when it was
// EC2's describes that took the moment.
func (p *Pool) gather(ctx context.Context, enough int) error {
	const alone, pause, most = 20 * time.Millisecond, 50 * time.Millisecond, time.Second
	for began := time.Now(); ; {
		s, err := p.Registry.View()
		if err != nil {
			return err
		}
		n, last := p.waiting(s)
		quiet := pause
		if n < 2 {
			quiet = alone
		}
		d := min(quiet-time.Since(last), most-time.Since(began))
		if d <= 0 || p.want(s) >= enough || sleep(ctx, d, "") != nil {
			return nil // who has no more time is told so by what comes next
		}
	}
}
