// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A growth asks EC2 for the subnets, the attached ENIs, and the limits of the instance type. These questions do not
// depend on each other, so a growth that needs all answers asks them at the same time.

// An Ahead has the questions that a growth has asked EC2 in advance. A growth uses each answer only once, because a
// later step may need a newer answer.
type Ahead struct {
	asked map[string]any // functions that wait for the answers, by the names of the answers
	all   sync.WaitGroup
}

// limitsAnswer is the name of the answer with the limits of the instance type. No file keeps this answer: see
// keepAnswer.
const limitsAnswer = "limits"

// AskAhead asks EC2 in advance all questions that come before the creation of an ENI. AskAhead returns the function
// wait, which waits for all answers. The caller must call wait at the end of the growth.
func (p *Node) AskAhead(ctx context.Context, s *registry.State) (wait func()) {
	a := &Ahead{asked: map[string]any{}}
	if s.Instance.ENIs == 0 {
		early(a, limitsAnswer, func() (aws.Limits, error) { return p.DescribeLimits(ctx, s.Instance.Type) })
	}
	vpc, zone, asked := book.VPCOf(s), s.Instance.Zone, time.Now()
	early(a, subnetsAnswer, func() (reply[aws.Subnet], error) {
		all, err := p.DescribeSubnets(ctx, vpc, zone)
		return reply[aws.Subnet]{vpc + " " + zone, asked, all}, err
	})
	early(a, enisAnswer, func() (reply[aws.ENI], error) {
		all, err := p.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
		return reply[aws.ENI]{s.Instance.ID, asked, all}, err
	})
	p.Ahead = a
	return func() { p.Ahead = nil; a.all.Wait() }
}

// early asks a question in a goroutine.
func early[T any](a *Ahead, name string, ask func() (T, error)) {
	var answer T
	var err error
	done := make(chan struct{})
	a.all.Go(func() { defer close(done); answer, err = ask() })
	a.asked[name] = func() (T, error) { <-done; return answer, err }
}

// answered returns the answer to a question that a growth has asked in advance. If the growth has not asked the
// question, or has used the answer already, ok is false.
func answered[T any](a *Ahead, name string) (answer T, ok bool, err error) {
	if a == nil || a.asked[name] == nil {
		return answer, false, nil
	}
	wait := a.asked[name].(func() (T, error))
	delete(a.asked, name)
	answer, err = wait()
	return answer, true, err
}
