// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A call to EC2 that changes something is done, not done, or nobody knows: its answer
// was lost, or that of an earlier attempt. Only of a call that is not done the intent is
// taken back, and only such a call is made again, unless its client token makes both one.

// A begin writes the intent of a call, and returns its key, which is the client token of
// a call that has one. If there is an old one, the call was made before with that token,
// and nobody knows what became of it.
type begin func(*registry.State) (token string, old bool)

// begins is the begin of a call that is never made again.
func begins(i registry.Intent) begin {
	return func(s *registry.State) (string, bool) {
		token := newToken()
		i.Since = time.Now()
		s.Intents[token] = i
		return token, false
	}
}

// A do makes the call that the state has an intent of, and returns what is to be recorded
// of it. An error that is not EC2's own says that its answer is not valid.
type do func(s *registry.State, token string) (record func(*registry.State), err error)

// call makes a changing call to EC2: in its turn, with the intent on disk before
// it, and what came of it recorded in the same update that removes the intent. While
// EC2 throttles, the whole node waits, until ctx is done. What the call asks for is
// decided by the state in which its intent is written, the last one before it.
func (p *Pool) call(ctx context.Context, action string, begin begin, do do) error {
	var throttled error // why there was another attempt
	for attempt := 0; ; attempt++ {
		if err := p.turn(ctx, action); err != nil {
			return errors.Join(throttled, err)
		}
		var s *registry.State
		var token string
		var old bool
		err := p.Registry.Change(ctx, func(now *registry.State) {
			s = now
			token, old = begin(s)
		})
		if err != nil {
			return errors.Join(throttled, err)
		}
		var record func(*registry.State)
		record, err = do(s, token)
		again := time.Now().Add(backoff(attempt))
		e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
			if errors.Is(err, aws.ErrThrottled) {
				s.NotBefore[action] = again
			}
			end(s, token, old, err)
			if err == nil {
				record(s)
			}
		})
		if !errors.Is(err, aws.ErrThrottled) || !aws.Undone(err) || e != nil {
			if ctx.Err() != nil {
				err = errors.Join(throttled, err)
			}
			return errors.Join(err, e)
		}
		throttled = err
	}
}

// end ends the intent of a call that was made, unless nobody knows what EC2 has done. If
// EC2 refuses what it was asked for before, or answers with what cannot be valid, it is
// not asked a third time; but resume goes on to look for what it may have made.
func end(s *registry.State, token string, old bool, err error) {
	switch {
	case err == nil, aws.Undone(err) && !old:
		delete(s.Intents, token)
	case old && !errors.Is(err, aws.ErrThrottled) && !aws.MaybeDone(err):
		lookOnly(s, token)
	}
}

// lookOnly has a call never made again.
func lookOnly(s *registry.State, token string) {
	if i, ok := s.Intents[token]; ok {
		i.Wanted = registry.Wanted{}
		s.Intents[token] = i
	}
}
