// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Collect releases what this node does not need. It ends the leases of pods that are gone. It unassigns addresses and
// prefixes that have been free for FreeAfter. It deletes the empty ENIs that this suite has made.
//
// Collect never unassigns a primary address. It unassigns nothing from a foreign ENI, or from an ENI whose tags are
// unknown. If metadata does not list an address or an ENI of the registry, the collection asks EC2: see Correct in
// package known.
//
// Collect also renews the list of the VPC's peers, if pods get routes to them. If a collection is interrupted, the next
// collection finishes its work.
func (p *Pool) Collect(ctx context.Context, what less.Collection) (less.Report, error) {
	unlock, err := p.Registry.Lock(ctx, "collect")
	if err != nil {
		return less.Report{}, err
	}
	defer unlock()
	c := &less.Collecting{Collection: what}
	err = p.withMode(call.Mode{Until: time.Now().Add(less.MostAwait)}).collect(ctx, c)
	return c.Report, err
}

func (p *Pool) collect(ctx context.Context, c *less.Collecting) error {
	if err := p.OfThisInstance(ctx); err != nil {
		return err
	}
	p.Look(ctx)
	seen, err := p.LearnWith(ctx, true, p.UsedIfNew)
	if err == nil {
		err = p.Correct(ctx, seen)
	}
	if err != nil {
		// A collection can end leases and find idle addresses with only the registry and the kernel.
		slog.Warn("the metadata service or EC2 does not answer: this collection uses only what the registry has",
			"error", err)
	}
	p.RenewPeers(ctx)
	if c.Used, err = p.InUse(); err != nil {
		return err
	}
	if err := p.EndLost(ctx, c); err != nil {
		return err
	}
	return errors.Join(p.EndBegun(ctx), p.ReleaseUnneeded(ctx, c), p.tidyNode(ctx, c))
}

// tidyNode removes the objects on the node that serve all pods, if no pod is left. If there are pods, but no routed
// pods, it removes the objects that serve only routed pods.
//
// After a loss of the registry, the registry has no leases, but pods may still run. So the kernel decides whether a pod
// is left: see [nl.NS.RemoveShared]. If allOnENIs returns false, tidyNode removes nothing, because the pod of a lease
// may be a routed pod, or may still start.
func (p *Pool) tidyNode(ctx context.Context, c *less.Collecting) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		remove := p.Host.RemoveShared
		if s.Leases.Len() > 0 {
			remove = p.Host.RemoveRouted
		}
		if c.Used.Partial || !allOnENIs(s, c.Used) {
			return nil
		}
		removed, err := remove()
		c.Tidied = c.Tidied || removed // Update may call this function twice
		if errors.Is(err, nl.ErrPods) {
			// A pod has started during the removal. Because Tidied is true, the command registry-gc puts the removed
			// objects back.
			return nil
		}
		return err
	})
}

// allOnENIs reports whether the kernel has shown each leased address on the link of an ENI, or on a slave of this link.
// The address of a routed pod is on neither.
func allOnENIs(s *registry.State, used lease.Used) bool {
	for a, l := range s.Leases.All() {
		if !used.AtENI(s, a, l) || s.BegunAfter(l, used.Looked) {
			return false
		}
	}
	return true
}
