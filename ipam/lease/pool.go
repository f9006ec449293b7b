// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Pool leases the addresses of this node by one policy. The registry records which attachment
// has which address.
type Pool struct {
	Registry *registry.Registry
	Host     *nl.NS
	Policy   Policy
	Shelves  []Shelf // directories of the pods' namespaces; nil: the variable Shelves

	// Began is when the DEL or the GC began. A lease that began later belongs to a later ADD, and does not end. If
	// Began is zero, the age of a lease does not count.
	Began time.Time
}

// by returns a copy of the pool with this policy.
func (p *Pool) by(policy Policy) *Pool {
	q := *p
	q.Policy = policy
	return &q
}

// An Owner is the attachment that asks for addresses, with its pod and network namespace.
type Owner struct {
	registry.Key
	Pod   plugin.Pod
	NetNS string
	NIC   int // number of the interface: 0 has the attachment's name
}

// name is the pod's name for people. Outside Kubernetes, it is the ID of the container.
func (o Owner) name() string {
	if o.Pod.Name == "" {
		return "container " + o.ContainerID
	}
	return "pod " + o.Pod.String()
}

func (o Owner) lease(eni string, c Choice, a netip.Addr, now time.Time) registry.Lease {
	return registry.Lease{Key: o.Key, PodNamespace: o.Pod.Namespace, PodName: o.Pod.Name, NetNS: o.NetNS,
		ENI: eni, NIC: o.NIC,
		Asked: slices.Contains(c.Addrs, a), Exclusive: c.Exclusive, Since: now}
}

// waiter returns the owner's key in the registry's map Waiters. If an ADD makes several interfaces, each of them has a
// key of its own.
func (o Owner) waiter() string {
	if o.NIC == 0 {
		return o.Key.String()
	}
	return fmt.Sprintf("%s/%d", o.Key, o.NIC)
}

// An Allocation is what an attachment gets.
type Allocation struct {
	Addrs []netip.Addr // one of each family
	ID    string       // the ID of the ENI that has the addresses
	ENI   registry.ENI
	VPC   registry.VPC
	Fresh bool      // the attachment had no address before; also set if it gets no address now
	Since time.Time // when the leases began
	// no address was free, so the attachment has waited for EC2; also set if it has got no address
	Waited bool

	seen *registry.State // the state from which the addresses were chosen
}

// The reasons why an ADD has to ask EC2. If the reason is ErrUnknown, the ADD asks the metadata service first.
//
// ErrPeers means that there is no list of peers. An old list is good enough for an ADD. But without a list, the ADD
// would add no routes to the peers, although the configuration asks for them. No process would add them later.
var (
	ErrNone    = errors.New("no address is free")
	ErrUnknown = errors.New("this node's ENIs are not known yet")
	ErrPeers   = errors.New("the peers of the VPC are not known yet")
)

// IsNone reports whether err means that the ADD has to ask EC2.
func IsNone(err error) bool { return isShort(err) || errors.Is(err, ErrPeers) }

// isShort reports whether err means that the attachment has no address, and that none is free.
func isShort(err error) bool { return errors.Is(err, ErrNone) || errors.Is(err, ErrUnknown) }

// Lacking returns the first part of the error of an ADD whose growth has failed. All waiters report the same error,
// even if they have found different things in the registry.
func Lacking(none error) error {
	if errors.Is(none, ErrPeers) {
		return ErrPeers
	}
	return ErrNone
}

// Take leases an address of each family to the owner. If the owner has these leases already, it gets the same
// addresses. If [IsNone] is true for the error, the registry now has the owner as a waiter.
func (p *Pool) Take(ctx context.Context, o Owner) (Allocation, error) {
	for {
		a, err := p.reserve(ctx, o)
		if isShort(err) && missing(a.seen) && p.Look(ctx) && ctx.Err() == nil {
			continue // an ENI that was passed over has its link again
		}
		if err != nil {
			return a, err
		}
		// The registry may not know all pods: pods of the original plugin have no leases. The node has a host route to
		// each pod, so withRoute finds the addresses of such pods. But the route may also be the owner's own. Then an
		// earlier ADD of the attachment has made the route, or another ADD has made it since this ADD got the lease. If
		// the owner's namespace has the address, the route is the owner's own.
		taken, err := p.withRoute(a.Addrs)
		if n := len(taken); err == nil && n > 0 {
			taken, err = without(taken, o.NetNS)
			a.Fresh = a.Fresh && len(taken) == n
		}
		if err != nil || len(taken) == 0 {
			return a, err
		}
		if err := p.reject(ctx, o, taken, routed); err != nil {
			return Allocation{}, err
		}
	}
}

// without returns the addresses that the namespace at path does not have.
func without(addrs []netip.Addr, path string) ([]netip.Addr, error) {
	ns, err := nl.Open(path, path)
	if gone(err) {
		return addrs, nil
	}
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	has, err := ns.Addrs("")
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		return slices.ContainsFunc(has, func(h nl.Addr) bool { return h.Prefix.Addr() == a })
	}), err
}

// withRoute returns the addresses to which the node has a host route.
func (p *Pool) withRoute(addrs []netip.Addr) (taken []netip.Addr, err error) {
	for _, a := range addrs {
		used, err := p.Host.HasHostRoute(a)
		if err != nil {
			return nil, err
		}
		if used {
			taken = append(taken, a)
		}
	}
	return taken, nil
}

// reserve does the part of Take that needs only the registry.
func (p *Pool) reserve(ctx context.Context, o Owner) (a Allocation, err error) {
	var none error
	var short bool
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		a, none, short = Allocation{}, nil, false
		now := time.Now()
		prune(s, p.Policy, now)
		p.Policy = p.Policy.Heed(s, o.Network)
		p.Note(s)
		s.UseLog(o.Network, p.Policy.Log)
		waiter := s.Waiters[o.waiter()]
		delete(s.Waiters, o.waiter())
		id, addrs := held(s, o)
		fresh := len(addrs) == 0
		if !fresh {
			if err := p.Policy.differs(s, o, id, addrs); err != nil {
				return err
			}
		} else {
			if err := p.Policy.refuses(s, o, now); err != nil {
				return err
			}
			id, addrs = Candidates(s, p.Policy, now)
			if waiter.Since.IsZero() {
				p.returned(s, o)
			}
		}
		if none = p.lacks(s, id); none != nil {
			a.Fresh, a.seen = fresh, s
			p.wait(s, o, waiter, now, deadline(ctx))
			return nil
		}
		// until its time Until, the failure of a full subnet stays: a free address of this node gives the subnet no
		// room
		if now.After(s.Failures[p.Concern(o)].Until) {
			delete(s.Failures, p.Concern(o))
		}
		a = Allocation{Addrs: p.Policy.inOrder(addrs), ID: id, ENI: s.ENIs[id], VPC: s.VPCs[s.ENIs[id].VPC],
			Fresh: fresh, Since: now, seen: s}
		var failed error
		for _, addr := range addrs {
			failed = errors.Join(failed, s.Reserve(addr, o.lease(id, p.Policy.Choice, addr, now)))
		}
		p.use(s, id)
		short = p.Short(s, now)
		return failed
	})
	if a.Fresh && err == nil && short {
		p.refill()
	}
	return a, cmp.Or(err, none)
}

// lacks returns why an ADD has to ask EC2, or nil if it need not. eni is the ENI whose addresses the ADD would get, or
// "" if no ENI has free addresses. If the registry was lost during the attachment of eni, the new registry has eni, but
// not the CIDRs of the VPC: see Unknown. Without these CIDRs, the pod would get no routes to the VPC. So lacks returns
// ErrUnknown, and Learn reads the CIDRs.
func (p *Pool) lacks(s *registry.State, eni string) error {
	switch {
	case Unknown(s):
		return ErrUnknown
	case eni == "":
		return ErrNone
	case p.Policy.Peers && s.VPCs[s.ENIs[eni].VPC].PeersRead.IsZero():
		return ErrPeers
	}
	return nil
}

// Unknown reports whether the registry has no ENI, or does not know the instance. Then Learn is needed. The registry
// may be lost while a process waits for EC2. Then the new registry has only what that process writes afterwards.
func Unknown(s *registry.State) bool { return len(s.ENIs) == 0 || s.Instance.ID == "" }

// StaleMetadata is how long the metadata service may still list an address that has left its ENI. This is twice the
// longest time that users have seen.
const StaleMetadata = 10 * time.Minute

// prune forgets five things that have no meaning any more:
//
//   - waiters whose deadline has passed
//   - ADDs that have given up, and were not repeated soon
//   - failures that are older than the longest wait: all ADDs that wait now began to wait later
//   - the times when addresses of a /80 became free, if these addresses no longer cool: a /80 has too many addresses to
//     list all
//   - the owners of addresses that no longer cool, and that are not to be released
func prune(s *registry.State, policy Policy, now time.Time) {
	for key, w := range s.Waiters {
		if now.After(w.Until) {
			givesUp(s, key, w.Until)
		}
	}
	maps.DeleteFunc(s.GaveUp, func(_ string, w registry.Waiter) bool { return now.Sub(w.Until) > Returns })
	maps.DeleteFunc(s.Owners, func(a netip.Addr, _ registry.Pod) bool {
		since, free := s.Free.At(a)
		return !free || now.Sub(since) > max(policy.ReuseWait, StaleMetadata) && !ToRelease(s, a)
	})
	maps.DeleteFunc(s.Failures, func(_ string, f registry.Failure) bool { return now.Sub(f.Since) > registry.MostWait })
	for a := range s.Free.Within(everywhere6) {
		since, _ := s.Free.At(a)
		if now.Sub(since) <= max(policy.ReuseWait, StaleMetadata) {
			continue
		}
		if _, e := s.ENIOf(a); !slices.Contains(e.Addrs, a) {
			s.Free.Delete(a)
		}
	}
}

// Note records what a collection has to know of the configuration, because a collection may have no configuration. Note
// also records this for ENIs of pools that are derived from this pool, because perhaps no pod asks for such a pool
// again.
func (p *Pool) Note(s *registry.State) {
	for id, e := range s.ENIs {
		takes := p.Policy.takes(id, e) && p.Policy.Choice.ENI == ""
		own := e.Pool == p.Policy.Pool || Origin(e.Pool) == p.Policy.Pool
		if takes || (e.Serving || e.Managed) && own {
			e.Configure(p.Policy.Misfit(e) == "", p.Policy.Serves(e), p.Policy.Keep) // the ENI may no longer fit
			s.ENIs[id] = e
		}
	}
	if s.Warm[p.Policy.Pool] != p.Policy.Warm {
		s.Warm[p.Policy.Pool] = p.Policy.Warm
	}
}

// held returns the addresses that the interface already has, and their ENI. If one of them is on no ENI any more, held
// ends all leases of the interface. The lease of that address is useless, and all addresses of an interface must be on
// the same ENI.
func held(s *registry.State, o Owner) (eni string, addrs []netip.Addr) {
	all := s.HeldBy(o.Key, o.NIC)
	for _, h := range all {
		id, _ := s.ENIOf(h)
		if id == "" {
			for _, a := range all {
				s.End(a, time.Now())
			}
			return "", nil
		}
		eni, addrs = id, append(addrs, h)
	}
	return eni, addrs
}

// inOrder puts the addresses of the policy's first family first, as Candidates does. The registry lists IPv4 first.
func (policy Policy) inOrder(addrs []netip.Addr) []netip.Addr {
	later := func(a netip.Addr) int { return min(1, max(0, slices.Index(policy.Families, nl.FamilyOf(a)))) }
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return later(a) - later(b) })
	return addrs
}

// deadline returns when the process of an ADD gives up. If ctx has no deadline, the process gives up in a minute.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(time.Minute)
}

// reject gives leases without a key to the addresses taken, because they are already in use. So no pod gets them. Such
// a lease ends when a collection finds that the address is gone. The owner's other addresses are free again. seen is
// the place where the kernel shows the addresses: the path of a namespace, or [routed]. If the place is not known, seen
// is empty.
func (p *Pool) reject(ctx context.Context, o Owner, taken []netip.Addr, seen string) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		for _, a := range s.HeldBy(o.Key, o.NIC) {
			if l, _ := s.Leases.At(a); slices.Contains(taken, a) {
				s.Found(a, registry.Lease{NetNS: seen, ENI: l.ENI, Bound: true, Since: time.Now()})
			} else {
				unleash(s, a)
			}
		}
		return nil
	})
}
