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

// A changing call to EC2 has one of three outcomes: done, not done, or unknown. The outcome is unknown if the answer to
// the call, or to an earlier attempt, was lost. The intent of a call stays while the outcome is unknown. A process
// repeats a call only if EC2 has not carried out the call, or if the call has a client token. EC2 carries out calls
// with the same token only once.

// NewToken returns a new client token: at most 64 ASCII characters (EC2 API reference, "Ensuring idempotency").
func NewToken() string { return rand.Text() }

// An IntentWriter writes the intent of a call, and returns the key of the intent. If the call has a client token, the
// token is the key. If isRepeat is true, an earlier call had this token, and the outcome of that call is unknown.
type IntentWriter func(*registry.State) (token string, isRepeat bool)

// NewIntent returns an IntentWriter that writes the intent i with a new token.
func NewIntent(i registry.Intent) IntentWriter {
	return func(s *registry.State) (string, bool) {
		token := NewToken()
		i.Since = time.Now()
		s.Intents[token] = i
		return token, false
	}
}

// A CallFunc makes the EC2 call for which an intent was written. The argument token is the key of that intent. A
// CallFunc returns a function that writes the result of the call to a state. An err that is no *aws.Error means that
// EC2's answer is invalid.
type CallFunc func(s *registry.State, token string) (record func(*registry.State), err error)

// Call waits for its turn, and then makes a changing call to EC2. Before the call, Call writes the intent to disk.
// After the call, one update of the registry removes the intent and records the result. While EC2 throttles the action,
// Call waits and tries again, until ctx is done. The function makeCall gets the latest state, with the new intent.
//
// If EC2 refuses the call, the same update records the refusal: see Object. Until the recorded refusal expires, Call
// fails without a call to EC2.
func (p *Node) Call(ctx context.Context, action string, on Object, writeIntent IntentWriter, makeCall CallFunc) error {
	if err := p.StandingRefusal(action, on.ENI, on.Subnet); err != nil {
		return err
	}
	var throttled error // EC2's refusal of the previous attempt
	for attempt := 0; ; attempt++ {
		if err := p.AwaitTurn(ctx, action); err != nil {
			return errors.Join(throttled, err)
		}
		var s *registry.State
		var token string
		var isRepeat bool
		err := p.Registry.Change(ctx, func(now *registry.State) {
			s = now
			token, isRepeat = writeIntent(s)
		})
		if err != nil {
			return errors.Join(throttled, err)
		}
		var record func(*registry.State)
		record, err = makeCall(s, token)
		again := time.Now().Add(p.Backoff(attempt))
		e := p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
			if errors.Is(err, aws.ErrThrottled) {
				s.NotBefore[action] = again
			}
			book.EndIntent(s, token, isRepeat, err)
			on.RecordRefusal(s, action, err, p.Cloud.Jitter)
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
		if err := p.yieldToADDs(ctx, action); err != nil {
			return errors.Join(throttled, err)
		}
	}
}
