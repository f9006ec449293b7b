// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// An ENI whose link is not on the node can serve no pods. An operator or another program may have detached the ENI, the
// driver may have failed, or the link may never have appeared. The process that finds the link missing records the time
// in the registry, so that only one ADD waits for the link. A growth, a collection, and an ADD without a free address
// look for the link again. If they find the link, they remove the record.

// ErrNoLink means that the link of an ENI is not on the node, and that no process should wait for the link.
var ErrNoLink = errors.New("its link is not on the node")

// HintNoLink tells an operator what to do about [ErrNoLink].
const HintNoLink = "an operator or another program has detached the ENI (CloudTrail: DetachNetworkInterface), or the " +
	"kernel has not found the ENI: see dmesg and 'cni-ipvlan-vpc-k8s-tool status'. The ENI serves pods again as soon " +
	"as its link is on the node"

// Obtain calls the function take, which leases addresses of an ENI. Then Obtain brings up the ENI's link, and returns
// the link's name. If the link is not on the node, Obtain ends these leases, and calls the function again. If the
// attachment had the addresses before this ADD, Obtain ends no leases, because the pod may use the addresses.
func (p *Pool) Obtain(
	ctx context.Context, o Owner, take func(context.Context, Owner) (Allocation, error),
) (Allocation, string, error) {
	for {
		a, err := take(ctx, o)
		if err != nil {
			return a, "", err
		}
		if has, err := p.hasCard(o, a); has || err != nil {
			return a, a.ENI.Link, err
		}
		link, err := p.linkUp(ctx, a.seen, a.ID)
		if err == nil {
			return a, link, nil
		}
		if !errors.Is(err, ErrNoLink) || !a.Fresh || ctx.Err() != nil {
			return a, "", linkError(a, err)
		}
		if err := p.freeAddrs(ctx, o); err != nil {
			return a, "", err
		}
	}
}

// hasCard reports whether the pod already has the link of its whole ENI. This is so if the runtime repeats an ADD.
func (p *Pool) hasCard(o Owner, a Allocation) (bool, error) {
	if a.Fresh || !p.Policy.Choice.Exclusive {
		return false, nil
	}
	ns, err := nl.Open(o.NetNS, o.NetNS)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer ns.Close()
	links, err := ns.Links()
	return slices.ContainsFunc(links, func(l nl.Link) bool { return l.MayBeCard() && l.MAC == a.ENI.MAC }), err
}

// linkError returns the error of an ADD that has leased addresses, but cannot use the ENI's link because of err.
func linkError(a Allocation, err error) error {
	hint := "the link of a new ENI takes some seconds to appear; if it does not appear, see dmesg and 'ip link'"
	switch {
	case errors.Is(err, ErrNoLink):
		hint = HintNoLink
	case errors.Is(err, ErrKept):
		hint = hintKept
	}
	return plugin.Errorf(plugin.CodeTryAgain, hint, "%s (%s), of which this ADD has leased %v: %w", a.ID,
		a.ENI.MAC, a.Addrs, err)
}

// freeAddrs ends the leases that the owner has just got. No pod has used the addresses of these leases.
func (p *Pool) freeAddrs(ctx context.Context, o Owner) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		for _, a := range s.HeldBy(o.Key, o.NIC) {
			endUnusedLease(s, a)
		}
	})
}

// endUnusedLease ends the lease of an address that no pod has used since the lease began. A chosen address cools again,
// because its lease may have begun before the address had cooled: see Choice.hasCooled. Other addresses do not cool.
func endUnusedLease(s *registry.State, a netip.Addr) {
	since := time.Time{}
	if l, _ := s.Leases.At(a); l.Asked && l.PodName != "" {
		since = time.Now()
	}
	s.End(a, since)
}

// awaitLink waits for the link of a new ENI, until [registry.LinkPatience] after a process first found the link
// missing. Before awaitLink waits, it records that the link is missing, so that other ADDs prefer other ENIs.
func (p *Pool) awaitLink(ctx context.Context, e registry.ENI, id string) (nl.Link, error) {
	var now time.Time
	err := p.Registry.Change(ctx, func(s *registry.State) {
		now = time.Now()
		known, ok := s.ENIs[id]
		if ok { // if not, the registry was lost meanwhile
			e = known
		}
		if e.Miss(now); ok {
			s.ENIs[id] = e
		}
	})
	if err != nil {
		return nl.Link{}, err
	}
	gone := fmt.Errorf("%w (since %s)", ErrNoLink, e.Missed.Format(time.RFC3339))
	if e.NoLink(now) {
		return nl.Link{}, gone
	}
	wait, cancel := context.WithDeadlineCause(ctx, now.Add(registry.LinkPatience-now.Sub(e.Missed)), gone)
	defer cancel()
	l, err := p.Host.LinkByMAC(wait, e.MAC)
	if err != nil {
		return l, err
	}
	return l, p.noteLink(ctx, e, id, l.Name)
}

// noteLink records that the link of an ENI is on the node. It also calls ignoreRouters for the link.
func (p *Pool) noteLink(ctx context.Context, e registry.ENI, id, name string) error {
	if err := p.ignoreRouters(e, name); err != nil {
		return err
	}
	return p.Registry.Change(ctx, func(s *registry.State) {
		s.Edit(id, func(e *registry.ENI) { e.Find(name) })
	})
}

// Look reads the links of the node, and records which ENIs have lost their link, or have it again. It returns true if
// at least one ENI has its link again. If a link has never been on the node, ADDs still wait for it, until
// [registry.LinkPatience] after the recorded time. If Look cannot read the links, it logs the error.
func (p *Pool) Look(ctx context.Context) (found bool) {
	found, err := p.look(ctx)
	if err != nil {
		slog.Warn("the node's links cannot be listed: this process does not see which links of ENIs are missing",
			"error", err)
	}
	return found && err == nil
}

func (p *Pool) look(ctx context.Context) (again bool, err error) {
	was, err := p.Registry.View()
	if err != nil {
		return false, nil // the caller also reads the registry, and reports the error
	}
	names := map[string]string{}
	for _, e := range was.ENIs {
		names[e.MAC] = e.Link
	}
	links, err := p.Host.LinksOf(names)
	if err != nil {
		return false, err
	}
	now, inPods := time.Now(), was.Exclusive()
	note := func(s *registry.State) (changed bool) {
		again = false
		for id, e := range s.ENIs {
			l, there := links[e.MAC]
			before, known := was.ENIs[id]
			switch {
			case there && !e.Missed.IsZero():
				e.Find(l.Name)
				again = true
			case !there && !e.Foreign && e.Missed.IsZero() && known && before.Link == e.Link && !inPods[id]:
				e.Miss(now)
			default:
				continue
			}
			s.ENIs[id], changed = e, true
		}
		return changed
	}
	if fresh, err := p.Registry.View(); err != nil || !note(fresh) {
		return false, err
	}
	err = p.Registry.Change(ctx, func(s *registry.State) { note(s) })
	return again, err
}

// anyLinkMissing reports whether the registry has an ENI whose link is missing.
func anyLinkMissing(s *registry.State) bool {
	for _, e := range s.ENIs {
		if !e.Missed.IsZero() {
			return true
		}
	}
	return false
}
