// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// missingGrace is for how long a pod's namespace must have been gone, as two
// collections saw it, before its lease ends without a DEL.
const missingGrace = time.Minute

// A Collection says what to give back, and afterwards what was given back.
type Collection struct {
	FreeAfter time.Duration // give back what has been free for so long
	Max       int           // addresses to unassign at most; negative: all

	Ended      []netip.Addr // leases of pods that have gone without a DEL
	Unassigned []netip.Addr
	Deleted    []string // ENIs

	Returned []netip.Prefix // delegated prefixes that were unassigned

	used lease.Used
}

// Collect gives back to EC2 what this node does not need: it ends the leases of pods
// that are gone, unassigns addresses that have been free for long, in one call for
// each ENI, and deletes ENIs that we have made and that have become empty. Primary
// addresses are never unassigned, nor is what ADDs may not take, and nothing is given
// back because the metadata service does not list it. A collection that is cut short is
// ended by the next one.
func (p *Pool) Collect(ctx context.Context, c *Collection) error {
	unlock, err := p.Registry.Lock(ctx, "collect")
	if err != nil {
		return err
	}
	defer unlock()
	if err := p.Learn(ctx); err != nil {
		// Leases and old addresses can be judged without.
		slog.Warn("collect without news", "error", err)
	}
	if c.used, err = p.inUse(); err != nil {
		return err
	}
	if err := p.endLost(ctx, c); err != nil {
		return err
	}
	return errors.Join(p.endBegun(ctx), p.deleteEmpty(ctx, c), p.unassignIdle(ctx, c), p.tidy(ctx, c))
}

// inUse is used with the node's own addresses: an address of an ENI may be one that
// the node has for other purposes than pods.
func (p *Pool) inUse() (lease.Used, error) {
	used := p.Used()
	own, err := p.Host.Addrs("")
	if err != nil {
		return used, err
	}
	for _, a := range own {
		used.By[a.Prefix.Addr()] = "the node"
	}
	return used, nil
}

// tidy removes what the plugins have installed on the node for all pods, when there
// is no pod left. An ADD gets its lease before it wires anything, so the lock of the
// registry keeps new pods away meanwhile.
func (p *Pool) tidy(ctx context.Context, c *Collection) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		if s.Leases.Len() > 0 || c.used.Partial {
			return nil
		}
		return p.Host.RemoveOwn()
	})
}

// endLost ends leases whose pod is gone, and notes which others the kernel confirms.
func (p *Pool) endLost(ctx context.Context, c *Collection) error {
	now := time.Now()
	return p.Registry.Change(ctx, func(s *registry.State) {
		for a, l := range s.Leases.All() {
			s.Leases.Set(a, sighted(l, c.used.By[a] != "", now))
		}
		c.Ended = s.Release(now, func(a netip.Addr, l registry.Lease) bool {
			return !c.used.Partial && !l.MissingSince.IsZero() && now.Sub(l.MissingSince) >= missingGrace
		})
		maps.DeleteFunc(s.Gone, func(_ netip.Addr, when time.Time) bool { return now.Sub(when) > lease.StaleMetadata })
	})
}

// sighted is the lease after a look at its pod. A lease without a namespace is one
// of a pod that we found, and that has lost its address.
func sighted(l registry.Lease, used bool, now time.Time) registry.Lease {
	switch {
	case used:
		l.Bound, l.MissingSince = true, time.Time{}
	case l.NetNS != "" && exists(l.NetNS):
		l.MissingSince = time.Time{}
	case l.MissingSince.IsZero():
		l.MissingSince = now
	}
	return l
}

// exists tells whether there is something at path; if in doubt, there is.
func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// deleteEmpty detaches and deletes the ENIs that were made by us and that no pod uses,
// unless their pool would be left with fewer free addresses than it wants.
func (p *Pool) deleteEmpty(ctx context.Context, c *Collection) error {
	var doomed []string
	now := time.Now()
	err := p.Registry.Change(ctx, func(s *registry.State) {
		for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
			e := s.ENIs[id]
			spare := lease.Ready(s, e.Pool, now) - s.Warm[e.Pool].Left()
			empty := c.empty(s, id, now) && lease.Count(s, e, now) <= spare
			if e.Managed && !e.Keep && e.Index > 0 && c.Max < 0 && (e.Draining || empty) {
				drain(s, id, true)
				doomed = append(doomed, id)
			}
		}
	})
	if err != nil {
		return err
	}
	var failed error
	for _, id := range doomed {
		if err := p.deleteENI(ctx, id); err != nil {
			failed = errors.Join(failed, fmt.Errorf("delete %s, which is empty: %w", id, err))
			continue
		}
		c.Deleted = append(c.Deleted, id)
	}
	return failed
}

// deleteENI detaches an ENI, deletes it, and then forgets it. It takes up where an
// earlier try ended.
func (p *Pool) deleteENI(ctx context.Context, id string) error {
	err := p.DetachAndDelete(ctx, id)
	if e, ok := errors.AsType[*aws.Error](err); ok && e.Action == "DetachNetworkInterface" && errors.Is(err, aws.ErrDenied) {
		return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) { drain(s, id, false) }))
	}
	if err != nil {
		return err
	}
	now := time.Now()
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, a := range s.ENIs[id].Addrs {
			s.Gone[a] = now
		}
		s.Drop(id)
	})
}

// drain says whether an ENI is on its way out.
func drain(s *registry.State, id string, draining bool) {
	if e, ok := s.ENIs[id]; ok {
		e.Draining = draining
		s.ENIs[id] = e
	}
}

// DetachAndDelete detaches an ENI if it is attached, waits until EC2 has done so, and
// deletes it. One that is gone already is no error.
func (p *Pool) DetachAndDelete(ctx context.Context, id string) error {
	const every = time.Second
	for detached := false; ; {
		enis, err := p.Cloud.DescribeENIs(ctx, aws.ByID(id))
		if errors.Is(err, aws.ErrNotFound) || err == nil && len(enis) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		if enis[0].Status == "available" {
			break
		}
		if !detached {
			if err := p.Cloud.DetachENI(ctx, enis[0].Attachment); err != nil && !errors.Is(err, aws.ErrNotFound) {
				return err
			}
			detached = true
			continue // it is often done at once
		}
		if err := sleep(ctx, every, "wait for "+id+" to be detached"); err != nil {
			return err
		}
	}
	err := p.Cloud.DeleteENI(ctx, id)
	if errors.Is(err, aws.ErrNotFound) {
		return nil
	}
	return err
}
