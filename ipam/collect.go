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

// Collect releases what this node does not need. It ends the leases of pods that are gone. It
// unassigns addresses that have been free for FreeAfter, in one call for each ENI. It deletes
// ENIs that this suite has made and that are empty.
//
// It never unassigns a primary address, nor an address that no ADD may take. That the metadata service does not list an
// object is not enough for its release.
//
// Collect also asks EC2 for the peers of the VPC if pods get routes to them, because ADDs do
// not ask. If a collection is interrupted, the next one finishes its work.
func (p *Pool) Collect(ctx context.Context, what less.Collection) (less.Report, error) {
	unlock, err := p.Registry.Lock(ctx, "collect")
	if err != nil {
		return less.Report{}, err
	}
	defer unlock()
	c := &less.Collecting{Collection: what}
	err = p.as(call.Mode{Until: time.Now().Add(less.MostAwait)}).collect(ctx, c)
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
		// The registry and the kernel are enough to end leases and to find idle addresses.
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
	return errors.Join(p.EndBegun(ctx), p.Release(ctx, c), p.tidy(ctx, c))
}

// tidy removes what the plugins have installed on the node for all pods, when no pod is left. When no routed pod is
// left, it removes what serves routed pods alone. A registry without leases does not prove that: it may have been lost,
// and metadata, which lists the pods' addresses, may not answer. Only the kernel proves it, see [nl.NS.RemoveShared].
// And unless the kernel has shown the address at the pod's own link, the pod of a lease may not have started yet.
func (p *Pool) tidy(ctx context.Context, c *less.Collecting) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		remove := p.Host.RemoveShared
		if s.Leases.Len() > 0 {
			remove = p.Host.RemoveRouted
		}
		if c.Used.Partial || !allOnENIs(s, c.Used) {
			return nil
		}
		removed, err := remove()
		c.Tidied = c.Tidied || removed // Update may call this again, and then nothing is left to remove
		if errors.Is(err, nl.ErrPods) {
			return nil // a pod came meanwhile: the caller repairs the node
		}
		return err
	})
}

// allOnENIs reports whether each lease belongs to a pod whose own link on the ENI was found by the look at the kernel.
// No routed pod has one.
func allOnENIs(s *registry.State, used lease.Used) bool {
	for a, l := range s.Leases.All() {
		_, e := s.ENIOf(a)
		if !used.AtENI(a, e.MAC, s.ENIs[l.ENI].MAC) || s.BegunAfter(l, used.Looked) {
			return false
		}
	}
	return true
}
