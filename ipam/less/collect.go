// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// missingGrace is how long a pod must be gone before its lease ends without a DEL. One collection records that the pod
// is gone, and a later collection ends the lease.
const missingGrace = time.Minute

// ReleaseUnneeded releases what this node does not need. It deletes ENIs before it unassigns idle addresses, because a
// deleted ENI loses its addresses without a further call.
func (p *Node) ReleaseUnneeded(ctx context.Context, c *Collecting) error {
	return errors.Join(p.heedConflists(ctx, c), p.ForgetDetached(ctx), p.detachUnused(ctx, c),
		unlessGrowing(p.releaseChosen(ctx, c)),
		p.deleteEmptyENIs(ctx, c), p.unassignIdle(ctx, c))
}

// EndLost ends the leases of pods that are gone. In the other leases, it records whether the kernel shows the pod. If
// an address of an ENI is in a namespace, but has no lease, EndLost adds a lease.
func (p *Node) EndLost(ctx context.Context, c *Collecting) error {
	now := time.Now()
	return p.Registry.Change(ctx, func(s *registry.State) {
		s.CheckLog()
		if len(s.ENIs) > 0 {
			s.ForgetStray()
		}
		for at, where := range c.Used.By {
			if id, e := s.ENIOf(at.Addr); id != "" && !e.Foreign && where != lease.TheNode &&
				c.Used.Of(e.MAC, at.Addr) != "" {
				known.LearnUsed(s, c.Used, id, at.Addr, now)
			}
		}
		for a, l := range s.Leases.All() {
			s.Leases.Set(a, updatedLease(s, a, l, c.Used, now))
		}
		c.Ended = s.EndWhere(now, func(a netip.Addr, l registry.Lease) bool {
			return !c.Used.Partial && !l.MissingSince.IsZero() && now.Sub(l.MissingSince) >= missingGrace
		})
		s.PruneRefusals(now)
		maps.DeleteFunc(s.Gone, func(_ netip.Addr, when time.Time) bool { return now.Sub(when) > lease.StaleMetadata })
	})
}

// updatedLease updates Bound and MissingSince of the lease l, and returns the lease. Bound and MissingSince record
// whether the kernel shows the pod. A lease without a key only says that the address was in use. So if nothing uses the
// address now, the pod counts as gone, even if the lease's path still leads to a namespace.
func updatedLease(s *registry.State, a netip.Addr, l registry.Lease, used lease.Used, now time.Time) registry.Lease {
	switch {
	case used.Shows(s, a, l):
		l.Bound, l.MissingSince = true, time.Time{}
	case l.Key == registry.Key{} && used.Holds(s, a, l),
		l.Key != registry.Key{} && l.NetNS != "" && isPodNetNS(l.NetNS):
		l.MissingSince = time.Time{}
	case l.MissingSince.IsZero():
		l.MissingSince = now
	}
	return l
}

// isPodNetNS reports whether the network namespace of a pod is at path. A path /proc/PID/ns/net may lead to the node's
// own namespace by now, because a process of the node has this PID. If stat(2) fails for another reason than a missing
// path, isPodNetNS returns true.
func isPodNetNS(path string) bool {
	is, err := os.Stat(path)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	own, err := os.Stat("/proc/self/ns/net")
	return err != nil || !os.SameFile(is, own)
}

// detachUnused detaches the ENIs for which pods had asked, if no pod uses them any more.
func (p *Node) detachUnused(ctx context.Context, c *Collecting) (err error) {
	if c.Max < 0 && p.Policy.Provision != lease.ProvisionNone {
		c.Detached, err = p.detachIdle(ctx, c.Used)
	}
	return err
}

// deleteEmptyENIs detaches and deletes the ENIs that this suite has made and that no pod uses, as long as their pools
// keep enough free addresses. If a network of the node must not create ENIs, deleteEmptyENIs only ends the draining of
// attached ENIs.
//
// deleteEmptyENIs begins with the ENIs that earlier processes have begun to delete. If the role has no permission to
// delete such an ENI, deleteEmptyENIs detaches no further ENIs, because it could not delete them. If EC2 throttles or
// does not answer, the next collection continues, and the other empty ENIs keep their addresses until then.
func (p *Node) deleteEmptyENIs(ctx context.Context, c *Collecting) error {
	if !p.MakesENIs() {
		return p.endDraining(ctx)
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var failed error
	ids, stranded, stopped := slices.Sorted(maps.Keys(s.ENIs)), false, false
	slices.SortStableFunc(ids, func(a, b string) int { return drainingFirst(s.ENIs[a], s.ENIs[b]) })
	for _, id := range ids {
		if !c.mustDelete(s, id) || stranded && !s.ENIs[id].Draining {
			continue // saves the steps of deleteIfEmpty for most ENIs
		}
		if stopped {
			c.kept = append(c.kept, id)
			continue
		}
		deleted, err := p.deleteIfEmpty(ctx, c, id)
		stranded = stranded || isDeleteDenied(err)
		switch {
		case deleted:
			c.Deleted = append(c.Deleted, id)
		case errors.Is(err, errNotOurs):
			slog.Warn("an ENI cannot be released, and this node does not try again", "eni", id, "reason", err)
		case isDeleteDenied(err):
			failed = errors.Join(failed, fmt.Errorf("delete %s, which serves no known pod: %w. Until this ENI is "+
				"deleted, no collection begins to delete another ENI", id, err))
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("delete %s, which serves no known pod: %w", id, err))
		}
		stopped = aws.Stops(err)
	}
	return failed
}

// drainingFirst compares two ENIs for a sort, so that draining ENIs come before all other ENIs.
func drainingFirst(a, b registry.ENI) int {
	switch {
	case a.Draining == b.Draining:
		return 0
	case a.Draining:
		return -1
	}
	return 1
}

// deleteIfEmpty deletes an ENI if mustDelete returns true for it.
func (p *Node) deleteIfEmpty(ctx context.Context, c *Collecting, id string) (deleted bool, err error) {
	mayMark := func(s *registry.State) bool {
		return c.mustDelete(s, id) && (!c.heedConflists(s) || c.mustDelete(s, id))
	}
	m, err := p.markDraining(ctx, id, mayMark, (*registry.ENI).Drain)
	if err != nil {
		c.kept = append(c.kept, id)
	}
	if err != nil || !m.isMarked {
		return false, err
	}
	err = p.deleteENI(ctx, id, c.Used, m.seen)
	if errors.Is(err, errAttached) && m.staysAttached(err) && !errors.Is(err, aws.ErrDenied) {
		// The ENI stays attached, for example because EC2 throttles. So remove the mark: pods can then have the ENI's
		// addresses at once. With the mark, pods would need a growth, and wait for minutes. If the role has no
		// permission to detach, deleteENI has already removed the mark, and the collection releases the addresses.
		c.kept = append(c.kept, id)
		err = errors.Join(err, p.undrain(context.WithoutCancel(ctx), id))
	}
	return err == nil, err
}

// mustDelete reports whether the collection has to delete an ENI. It returns true if a process has begun to delete the
// ENI. It also returns true for an empty ENI that the node may delete, and whose addresses the pool does not need.
func (c *Collecting) mustDelete(s *registry.State, id string) bool {
	e, now := s.ENIs[id], time.Now()
	if !e.Detachable() || c.Max >= 0 || e.OnRequest {
		return false
	}
	keep := e.Keep && !e.Detached && !e.Retired // a detached or retired ENI serves no new pod
	may := e.Managed && !e.Foreign && e.TagsUnknown == "" && !keep
	if e.Draining || !may || !c.empty(s, id, now) {
		return e.Draining
	}
	// If the ENI's link is missing, ready is 0: the pool loses no usable address.
	ready := lease.Count(s, e, now.Add(-c.wait(e.Pool)))
	return ready == 0 || e.Closed() || ready <= c.spareReady(s, e.Pool, now)
}
