// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// AskInAdvance asks EC2 for the peers of the VPC, before the growth needs them. If the growth needs a new ENI,
// AskInAdvance also asks the questions of AskAhead. At its end, the growth must call the returned function, which waits
// for the answers. While EC2 throttles, AskInAdvance asks nothing.
func (p *Node) AskInAdvance(ctx context.Context) (waitForAnswers func()) {
	s, err := p.Registry.View()
	if err != nil || lease.Unknown(s) || known.Throttled(s) {
		return func() {}
	}
	peers, other := make(chan struct{}), *p // a copy, because the goroutine must not change p
	p.PeersAsked = true
	go func() {
		defer close(peers)
		other.RenewPeers(ctx)
	}()
	enis := func() {}
	if p.needsENI(s) {
		enis = p.AskAhead(ctx, s)
	}
	return func() { enis(); <-peers }
}

// needsENI reports whether a growth will certainly ask for a new ENI. If the limits of the instance type are not known,
// needsENI returns true only if the boot ENI is the only ENI.
func (p *Node) needsENI(s *registry.State) bool {
	if !p.MakesENIs() || p.Policy.Choice.Chooses() || p.quotaError() != nil || cmp.Or(refusalError(s),
		call.StandingRefusal(s, book.CreateAction), call.StandingRefusal(s, book.AttachAction)) != nil {
		return false
	}
	for _, e := range s.ENIs {
		if e.TagsUnknown == registry.NotAsked || p.Policy.Unclear(e) {
			return false // the growth first asks EC2 whether the ENI serves pods
		}
	}
	places := lease.Places(s, p.Policy, time.Now())
	if s.Instance.ENIs == 0 {
		return len(places) == 0 && len(s.ENIs) == 1
	}
	return p.fullError(s) == nil && !slices.ContainsFunc(places, func(at lease.Place) bool {
		return slices.ContainsFunc(p.Policy.Families, func(f lease.Family) bool { return book.Room(s, at.ENI, f) > 0 })
	})
}
