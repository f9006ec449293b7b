// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// While EC2 throttles, an ADD gives up after its addTimeout, and the next ADD continues the work. If each ADD described
// all ENIs and subnets again, a large cluster would spend more time on describe calls than on changing calls. So a
// process keeps EC2's answers in files for the next process. An old answer does no harm, because it only prepares a
// changing call, which EC2 refuses if the answer is out of date.

// The files of answers, in the registry's directory.
const (
	subnetsAnswer = "ec2-subnets.json" // the subnets of the zone
	enisAnswer    = "ec2-enis.json"    // the ENIs that are attached to this instance
	madeAnswer    = "ec2-made.json"    // the new ENI that a process could not attach because EC2 throttled
)

// lastSubnets is the file with EC2's last description of the zone's subnets: see [Node.LastSubnets]. No process uses
// this file to prepare a call to EC2. A process writes the file even if EC2 does not throttle.
const lastSubnets = "ec2-last-subnets.json"

const (
	KeptLife = 10 * time.Minute // the greatest age of a kept answer that a process uses
	JustNow  = 2 * time.Minute  // how long Throttled returns true after a time in State.NotBefore
)

// A reply is EC2's answer to a question, with the question and the time when a process asked it.
type reply[T any] struct {
	Question string
	Asked    time.Time
	All      []T
}

// recentAnswer returns EC2's answer to a question: from a file (then earlier is true), from p.Ahead, or from EC2 now.
func recentAnswer[T any](
	ctx context.Context, p *Node, file, question string, ask func(context.Context) ([]T, error),
) (a reply[T], earlier bool, err error) {
	if a, ok := keptAnswer[T](p, file); ok && a.Question == question {
		return a, true, nil
	}
	a, ahead, err := answered[reply[T]](p.Ahead, file)
	if !ahead || a.Question != question {
		a = reply[T]{Question: question, Asked: time.Now()}
		a.All, err = ask(ctx)
	}
	if err == nil {
		keepAnswer(p, file, a)
	}
	return a, false, err
}

// keptAnswer reads an earlier answer of EC2 from a file. It returns the answer only if EC2 throttles this node and the
// answer is less than KeptLife old.
func keptAnswer[T any](p *Node, file string) (a reply[T], ok bool) {
	s, err := p.Registry.View()
	if err != nil || !Throttled(s) {
		return a, false
	}
	b, err := p.Registry.Kept(file)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	age := time.Since(a.Asked) // negative if an operator or another program has set the clock back
	return a, err == nil && age >= 0 && age < KeptLife
}

// keepAnswer writes an answer to a file for the next process. If EC2 does not throttle this node, keepAnswer writes
// nothing.
func keepAnswer[T any](p *Node, file string, a reply[T]) {
	if s, err := p.Registry.View(); err != nil || !Throttled(s) {
		return
	}
	writeAnswer(p, file, a)
}

func writeAnswer[T any](p *Node, file string, a reply[T]) {
	b, err := json.Marshal(a)
	if err == nil {
		err = p.Registry.Keep(file, b)
	}
	if err != nil {
		slog.Warn("an answer of EC2 could not be kept, so the next process asks EC2 again", "file", file, "error", err)
	}
}

// Throttled reports whether EC2 has throttled a call of this node in the last minutes.
func Throttled(s *registry.State) bool {
	for _, t := range s.NotBefore {
		if time.Since(t) < JustNow {
			return true
		}
	}
	return false
}

// ForgetUnlessThrottled deletes the kept answers if err may come from an old answer. Throttling and the end of a
// context do not come from an old answer.
func (p *Node) ForgetUnlessThrottled(err error) {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if err != nil && !late && !errors.Is(err, aws.ErrThrottled) {
		for _, file := range []string{subnetsAnswer, enisAnswer, madeAnswer} {
			p.Registry.Drop(file)
		}
	}
}

// DescribeSubnets lists the subnets of a VPC in one zone, and keeps the answer for LastSubnets. Like call.Look, it
// waits while EC2 throttles this call.
func (p *Node) DescribeSubnets(ctx context.Context, vpc, zone string) ([]aws.Subnet, error) {
	a := reply[aws.Subnet]{Question: vpc + " " + zone, Asked: time.Now()}
	var err error
	if a.All, err = p.Node.DescribeSubnets(ctx, vpc, zone); err != nil {
		return nil, err
	}
	if unlock, err := p.Registry.Lock(ctx, "subnets"); err == nil { // a collection may ask at the same time
		defer unlock()
		writeAnswer(p, lastSubnets, a)
	}
	return a.All, nil
}

// LastSubnets returns EC2's last description of the subnets in the instance's zone, and the time when a process asked
// for it. This time is zero if no process has asked about this VPC and zone, or if the clock was set back. It is also
// zero if EC2 has later said that a subnet is full.
func (p *Node) LastSubnets(s *registry.State) (all []aws.Subnet, askedAt time.Time) {
	var a reply[aws.Subnet]
	b, err := p.Registry.Kept(lastSubnets)
	if err != nil || json.Unmarshal(b, &a) != nil || a.Question != book.VPCOf(s)+" "+s.Instance.Zone ||
		a.Asked.After(time.Now()) {
		return nil, time.Time{}
	}
	return a.All, a.Asked
}

// ForgetSubnets deletes the description that LastSubnets returns, because EC2 has just said that a subnet is full.
func (p *Node) ForgetSubnets() { p.Registry.Drop(lastSubnets) }

// ZoneSubnets lists the subnets of the VPC in the zone. A new ENI can only be in one of these subnets. While EC2
// throttles, the list may be a kept answer.
func (p *Node) ZoneSubnets(ctx context.Context, vpc, zone string) ([]aws.Subnet, error) {
	ask := func(ctx context.Context) ([]aws.Subnet, error) { return p.DescribeSubnets(ctx, vpc, zone) }
	a, _, err := recentAnswer(ctx, p, subnetsAnswer, vpc+" "+zone, ask)
	return a.All, err
}

// attachedENIs lists the ENIs that are attached to the instance. While EC2 throttles, the list may be a kept answer.
func (p *Node) attachedENIs(ctx context.Context, instance string) (Attached, error) {
	a, earlier, err := recentAnswer(ctx, p, enisAnswer, instance, func(ctx context.Context) ([]aws.ENI, error) {
		return p.DescribeENIs(ctx, aws.ByInstance(instance))
	})
	return Attached{ENIs: a.All, Asked: a.Asked, Kept: earlier}, err
}

// OursNow lists the ENIs that are attached to this instance, and the unattached ENIs that were created for this
// instance. It also returns the time when it asked EC2. If EC2 throttles, OursNow keeps the attached ENIs for the next
// process.
func (p *Node) OursNow(ctx context.Context, s *registry.State) ([]aws.ENI, time.Time, error) {
	asked := time.Now()
	all, err := p.ownENIs(ctx, s)
	if err == nil {
		here := slices.DeleteFunc(slices.Clone(all), func(e aws.ENI) bool { return e.Instance != s.Instance.ID })
		keepAnswer(p, enisAnswer, reply[aws.ENI]{s.Instance.ID, asked, here})
	}
	return all, asked, err
}

// KeepMade keeps two answers of EC2 for the next process, if EC2 throttles. The first is the description e of a new ENI
// that this process could not attach. The second is the list of the attached ENIs in the argument seen.
func (p *Node) KeepMade(instance string, e aws.ENI, seen Attached) {
	if before, ok := p.keptENI(instance); ok && before.ID == e.ID {
		return // the ENI is kept already, and no process has asked EC2 since
	}
	e.Status = "available" // in EC2's answer to the creation, the status is pending; within a second it is available
	keepAnswer(p, madeAnswer, reply[aws.ENI]{instance, time.Now(), []aws.ENI{e}})
	// A kept answer about the attached ENIs is newer than the answer in the argument seen.
	if _, ok := keptAnswer[aws.ENI](p, enisAnswer); !ok && !seen.Asked.IsZero() {
		keepAnswer(p, enisAnswer, reply[aws.ENI]{instance, seen.Asked, seen.ENIs})
	}
}

// keptENI returns the ENI that KeepMade has kept.
func (p *Node) keptENI(instance string) (e aws.ENI, ok bool) {
	a, ok := keptAnswer[aws.ENI](p, madeAnswer)
	if !ok || a.Question != instance || len(a.All) != 1 {
		return e, false
	}
	return a.All[0], true
}

// Made returns the ENI that KeepMade has kept for the next process. The intent to attach this ENI must be the
// registry's only intent with an unknown outcome. Otherwise Made returns no ENI, because the call of another intent may
// have attached an ENI.
func (p *Node) Made(s *registry.State) (e aws.ENI, ok bool) {
	begun := book.Unknowns(s)
	if len(begun) != 1 || begun[0].Action != book.AttachAction || s.Rebuilt.Unconfirmed {
		return e, false
	}
	e, ok = p.keptENI(s.Instance.ID)
	return e, ok && e.ID == begun[0].ENI
}

// ownENIs lists the ENIs that are attached to this instance, and the unattached ENIs that were created for this
// instance.
func (p *Node) ownENIs(ctx context.Context, s *registry.State) ([]aws.ENI, error) {
	attached, err := p.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
	if err != nil {
		return nil, err
	}
	strays, err := p.DescribeENIs(ctx, aws.ByDescription(book.Description(s.Instance.ID)), aws.ByStatus("available"))
	// These ENIs have the description of our ENIs, but their tags may name another instance, or forbid changes.
	strays = slices.DeleteFunc(strays, func(e aws.ENI) bool {
		return book.MadeFor(e) != s.Instance.ID || book.Foreign(e)
	})
	return append(attached, strays...), err
}
