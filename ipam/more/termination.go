// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// setDeleteOnTermination sets DeleteOnTermination of an ENI, so that EC2 deletes the ENI together with the instance. No
// pod waits for this call: see Finish. If it fails, the intent stays, and a later process tries again. If EC2 does not
// answer, unreached is true.
func (p *Node) setDeleteOnTermination(ctx context.Context, eni, attachment, token string) (unreached bool, _ error) {
	s, err := p.Registry.View()
	if err != nil || ctx.Err() != nil || time.Now().Before(s.NotBefore[book.ModifyAction]) ||
		call.StandingRefusal(s, book.ModifyAction, eni) != nil {
		return false, err // the call can wait
	}
	if err := p.Cloud.DeleteOnTermination(ctx, eni, attachment); err != nil {
		slog.Warn("DeleteOnTermination could not be set: EC2 would keep the ENI when the instance ends. The next "+
			"growth or collection tries again, if a network of the node has \"provision\": \"full\"",
			"eni", eni, "error", err)
		if errors.Is(err, aws.ErrThrottled) {
			return false, p.NotBefore(ctx, book.ModifyAction, p.Backoff(3))
		}
		if !aws.Undone(err) || ctx.Err() != nil {
			return aws.Unreached(err), nil
		}
		return aws.Unreached(err), p.Registry.Change(ctx, func(s *registry.State) {
			call.Object{ENI: eni}.RecordRefusal(s, book.ModifyAction, err, p.Cloud.Jitter)
			book.ForgetAttachment(s, token)
		})
	}
	return false, p.Registry.Change(ctx, func(s *registry.State) { delete(s.Intents, token) })
}

// Finish calls setDeleteOnTermination for the ENIs that growths have attached. Before that, a growth gives addresses to
// its pods. If the process is killed before Finish, the next growth or collection makes these calls.
func (p *Node) Finish(ctx context.Context) {
	const turn, patience = time.Second, 10 * time.Second
	s, err := p.Registry.View()
	if err != nil || !book.LeftAny(s) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	waiting, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	unlock, err := p.Registry.Lock(waiting, "grow")
	if err != nil {
		return // another growth has the lock, and makes these calls at its beginning
	}
	defer unlock()
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.setAllDeleteOnTermination(asking); err != nil {
		slog.Warn("DeleteOnTermination of ENIs is not set yet: the next growth or collection tries again", "error", err)
	}
}

// FinishNamed calls Finish for an ENI that an operator's command has attached, up to eight times if EC2 throttles or
// fails. On a node that must not create ENIs, no later process would try again.
func (p *Node) FinishNamed(ctx context.Context, id string) error {
	const attempts = 8
	for n := range attempts {
		s, err := p.Registry.View()
		if err != nil || s.Intents[terminationToken(s, id)].Attachment == "" {
			return err
		}
		wait := max(p.Backoff(n), time.Until(s.NotBefore[book.ModifyAction]))
		if err := call.Sleep(ctx, wait, "set DeleteOnTermination of "+id); err != nil {
			return err
		}
		p.Finish(ctx)
	}
	return nil
}

// setsTermination reports whether this process may set DeleteOnTermination of ENIs. The role has this permission if a
// network of the node may create ENIs.
func (p *Node) setsTermination() bool { return p.MakesENIs() || p.Policy.AnyMakesENIs }

// ensureDeleteOnTermination sets DeleteOnTermination of an attached ENI, even if there is no intent for this call. If
// this process must not change ENIs, ensureDeleteOnTermination only writes the intent.
func (p *Node) ensureDeleteOnTermination(ctx context.Context, e aws.ENI) error {
	token := call.NewToken()
	err := p.Registry.Change(ctx, func(s *registry.State) {
		i := registry.Intent{Action: book.ModifyAction, ENI: e.ID, Attachment: e.Attachment, Since: time.Now()}
		for t, old := range s.Intents {
			if old.ENI == e.ID && old.Action == book.ModifyAction {
				token, i.Since = t, old.Since // with a new time, the intent would never end
			}
		}
		s.Intents[token] = i
	})
	if err != nil || e.Attachment == "" || !p.setsTermination() {
		return err // a later process makes the call
	}
	_, err = p.setDeleteOnTermination(ctx, e.ID, e.Attachment, token)
	return err
}

// setAllDeleteOnTermination calls setDeleteOnTermination for each ENI that still has an intent for this call.
func (p *Node) setAllDeleteOnTermination(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil || !p.setsTermination() {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		token := terminationToken(s, id)
		if attachment := s.Intents[token].Attachment; attachment != "" {
			unreached, err := p.setDeleteOnTermination(ctx, id, attachment, token)
			if err != nil || unreached { // the call for each further ENI could take ten seconds
				return err
			}
		}
	}
	return nil
}

// terminationToken returns the key of the intent to set DeleteOnTermination of an ENI, or "". The ENI may have another
// intent: to attach it, by a call that got no answer.
func terminationToken(s *registry.State, eni string) string {
	for token, i := range s.Intents {
		if i.ENI == eni && i.Attachment != "" {
			return token
		}
	}
	return ""
}
