// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package call

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A changing call to EC2 has one of three outcomes: done, not done, or unknown. It is unknown
// if the answer to the call, or to an earlier attempt, was lost. The intent of a call is
// removed only if the call is not done. Only such a call is repeated, unless it has a client
// token: the token makes two calls one.

// NewToken returns a new client token: at most 64 ASCII characters (EC2 API reference,
// "Ensuring idempotency").
func NewToken() string { return rand.Text() }

// A Begin writes the intent of a call, and returns the key of the intent. If the call has a
// client token, the token is the key. If old is true, an earlier call had that token, and its
// outcome is unknown.
type Begin func(*registry.State) (token string, old bool)

// Begins returns the Begin of a call that is never repeated.
func Begins(i registry.Intent) Begin {
	return func(s *registry.State) (string, bool) {
		token := NewToken()
		i.Since = time.Now()
		s.Intents[token] = i
		return token, false
	}
}

// A Do makes the call of an intent, and returns how to record its result. An error that is
// not EC2's means that EC2's answer is invalid.
type Do func(s *registry.State, token string) (record func(*registry.State), err error)

// Call makes a changing call to EC2, in its turn. The intent is on disk before the call. The
// result is recorded in the same update that removes the intent. While EC2 throttles, all
// processes of the node wait, until ctx is done. The parameters of the call come from the
// state in which the intent is written, because that is the latest one.
//
// If a refusal is to be remembered, the same update records it. While it is remembered, the call is not made: see
// Object.
func (p *Node) Call(ctx context.Context, action string, on Object, begin Begin, do Do) error {
	if err := p.Standing(action, on.ENI, on.Subnet); err != nil {
		return err
	}
	var throttled error // why there was another attempt
	for attempt := 0; ; attempt++ {
		if err := p.Turn(ctx, action); err != nil {
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
		again := time.Now().Add(p.Backoff(attempt))
		e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
			if errors.Is(err, aws.ErrThrottled) {
				s.NotBefore[action] = again
			}
			book.EndIntent(s, token, old, err)
			on.Refuse(s, action, err, p.Cloud.Jitter)
			if err == nil {
				record(s)
			}
		})
		if !errors.Is(err, aws.ErrThrottled) || !aws.Undone(err) || e != nil {
			if err != nil && ctx.Err() != nil {
				err = errors.Join(throttled, err)
			}
			return errors.Join(err, e)
		}
		throttled = err
		if err := p.yield(ctx, action); err != nil {
			return errors.Join(throttled, err)
		}
	}
}
