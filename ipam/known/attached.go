// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package known

import (
	"context"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An Attached has the ENIs that EC2 has listed as attached to this instance.
type Attached struct {
	ENIs  []aws.ENI
	Asked time.Time // zero: EC2 was not asked
	Kept  bool      // an earlier process has asked, and has kept the answer
}

// LastAttached returns the ENIs that are attached to this instance, from a kept answer of EC2 or from a new one. It
// records a new answer in the registry, and returns the changed state.
func (p *Node) LastAttached(ctx context.Context, s *registry.State) (seen Attached, _ *registry.State, err error) {
	seen, err = p.attachedENIs(ctx, s.Instance.ID)
	// EC2 may still list an ENI that this node has just deleted.
	seen.ENIs = slices.DeleteFunc(seen.ENIs, func(e aws.ENI) bool {
		return len(e.Addrs) > 0 && s.ENIs[e.ID].MAC == "" && time.Since(s.Gone[e.Addrs[0]]) < LagOfEC2
	})
	if err != nil || seen.Kept {
		return seen, s, err
	}
	err = p.Registry.Change(ctx, func(now *registry.State) { NoteAttached(now, seen.ENIs, seen.Asked); s = now })
	return seen, s, err
}

// SeeAttached does what LastAttached does, but uses no kept answer.
func (p *Node) SeeAttached(ctx context.Context, s *registry.State) (Attached, *registry.State, error) {
	p.Registry.Drop(enisAnswer)
	return p.LastAttached(ctx, s)
}

// Tracking returns the boot ENI's timeouts for connection tracking.
func (seen Attached) Tracking(s *registry.State) registry.Tracking {
	for _, e := range seen.ENIs {
		if book.IsBoot(s.ENIs[e.ID], e) {
			return registry.Tracking(e.Tracking)
		}
	}
	return registry.Tracking{}
}
