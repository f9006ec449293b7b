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

// A Pool leases addresses of this node to attachments. It follows one policy, and records the leases in the registry.
type Pool struct {
	Registry *registry.Registry
	Host     *nl.NS
	Policy   Policy
	Shelves  []Shelf // directories of the pods' namespaces; nil: those in the package's variable Shelves

	// Began is when the DEL or the GC began. A lease that began later belongs to a later ADD, and stays. If Began is
	// zero, the age of a lease does not matter.
	Began time.Time
}

// withPolicy returns a copy of p with this policy.
func (p *Pool) withPolicy(policy Policy) *Pool {
	q := *p
	q.Policy = policy
	return &q
}

// An Owner is the attachment that asks for addresses, with its pod and network namespace.
type Owner struct {
	registry.Key
	Pod   plugin.Pod
	NetNS string
	NIC   int // number of the interface; interface 0 has the name in the attachment's key
}

// displayName returns the pod's name, to show it to people. Outside Kubernetes, it returns the ID of the container.
func (o Owner) displayName() string {
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

// waiterKey returns the owner's key in the registry's map Waiters. Each interface of an attachment has its own key.
func (o Owner) waiterKey() string {
	if o.NIC == 0 {
		return o.Key.String()
	}
	return fmt.Sprintf("%s/%d", o.Key, o.NIC)
}

// An Allocation has the addresses that an attachment gets, and their ENI.
type Allocation struct {
	Addrs []netip.Addr // one of each family
	ID    string       // the ID of the ENI that has the addresses
	ENI   registry.ENI
	VPC   registry.VPC
	Fresh bool      // the attachment had no address before this ADD; also correct if the ADD fails
	Since time.Time // when the leases began
	// the ADD has waited for EC2, because no address was free; also correct if the ADD fails
	Waited bool

	seen *registry.State // the state from which the addresses were chosen
}

// The reasons why an ADD has to ask EC2. For ErrUnknown, the ADD asks the metadata service before it asks EC2. ErrPeers
// means that the registry has no list of peers. An old list is good enough. But without a list, the pod would never get
// the routes to the peers.
var (
	ErrNone    = errors.New("no address is free")
	ErrUnknown = errors.New("this node's ENIs are not known yet")
	ErrPeers   = errors.New("the peers of the VPC are not known yet")
)

// IsNone reports whether err means that the ADD has to ask EC2.
func IsNone(err error) bool { return isShort(err) || errors.Is(err, ErrPeers) }

// isShort reports whether err means that the attachment has no address, and that no address is free for it.
func isShort(err error) bool { return errors.Is(err, ErrNone) || errors.Is(err, ErrUnknown) }

// Lacking returns what an ADD still needs, for the error of a failed growth. The argument takeErr is the error of Take.
// For ErrUnknown, Lacking returns ErrNone, so that all waiters for addresses report the same error.
func Lacking(takeErr error) error {
	if errors.Is(takeErr, ErrPeers) {
		return ErrPeers
	}
	return ErrNone
}

// Take leases an address of each family to the owner. If the owner has these leases already, it gets the same
// addresses. If [IsNone] returns true for the error, Take has recorded the owner as a waiter.
func (p *Pool) Take(ctx context.Context, o Owner) (Allocation, error) {
	for {
		a, err := p.reserve(ctx, o)
		if isShort(err) && anyLinkMissing(a.seen) && p.Look(ctx) && ctx.Err() == nil {
			continue // the link of an ENI is on the node again, so Take can use the ENI
		}
		if err != nil {
			return a, err
		}
		// Pods of the original plugin have no leases, but the node has a host route to each of them. A host route may
		// also come from another ADD of this attachment, which has ended or still runs. In this case, the owner's
		// namespace has the address.
		taken, err := p.addrsWithRoute(a.Addrs)
		if n := len(taken); err == nil && n > 0 {
			taken, err = missingAddrs(taken, o.NetNS)
			a.Fresh = a.Fresh && len(taken) == n
		}
		if err != nil || len(taken) == 0 {
			return a, err
		}
		if err := p.rejectAddrs(ctx, o, taken, routePlace); err != nil {
			return Allocation{}, err
		}
	}
}

// missingAddrs returns the addresses in addrs that the namespace at path does not have.
func missingAddrs(addrs []netip.Addr, path string) ([]netip.Addr, error) {
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

// addrsWithRoute returns the addresses in addrs to which the node has a host route.
func (p *Pool) addrsWithRoute(addrs []netip.Addr) (taken []netip.Addr, err error) {
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

// reserve does the part of Take that needs only the registry, and not the kernel.
func (p *Pool) reserve(ctx context.Context, o Owner) (a Allocation, err error) {
	var none error
	var short bool
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		a, none, short = Allocation{}, nil, false
		now := time.Now()
		pruneState(s, p.Policy, now)
		p.Policy = p.Policy.Heed(s, o.Network)
		p.Note(s)
		s.UseLog(o.Network, p.Policy.Log)
		waiter := s.Waiters[o.waiterKey()]
		delete(s.Waiters, o.waiterKey())
		id, addrs := heldAddrs(s, o)
		fresh := len(addrs) == 0
		if !fresh {
			if err := p.Policy.checkHeld(s, o, id, addrs); err != nil {
				return err
			}
		} else {
			if err := p.Policy.refusal(s, o, now); err != nil {
				return err
			}
			id, addrs = Candidates(s, p.Policy, now)
			if waiter.Since.IsZero() {
				p.forgetGivenUp(s, o)
			}
		}
		if none = p.reasonToAsk(s, id); none != nil {
			a.Fresh, a.seen = fresh, s
			p.addWaiter(s, o, waiter, now, giveUpTime(ctx))
			return nil
		}
		// A full subnet stays full, even if this node has a free address. So the Failure stays until the time in the
		// field Until.
		if now.After(s.Failures[p.Concern(o)].Until) {
			delete(s.Failures, p.Concern(o))
		}
		a = Allocation{Addrs: p.Policy.sortByFamily(addrs), ID: id, ENI: s.ENIs[id], VPC: s.VPCs[s.ENIs[id].VPC],
			Fresh: fresh, Since: now, seen: s}
		var failed error
		for _, addr := range addrs {
			failed = errors.Join(failed, s.Reserve(addr, o.lease(id, p.Policy.Choice, addr, now)))
		}
		p.recordRequest(s, id)
		short = p.Short(s, now)
		return failed
	})
	if a.Fresh && err == nil && short {
		p.markRefill()
	}
	return a, cmp.Or(err, none)
}

// reasonToAsk returns why an ADD has to ask EC2, or nil. The argument eni is the ENI whose addresses the ADD would get,
// or "" if no address is free. If the registry does not know the instance, the registry may lack the CIDRs of the VPC.
// Without these CIDRs, the pod would get no routes to the VPC, so Learn must read the CIDRs.
func (p *Pool) reasonToAsk(s *registry.State, eni string) error {
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

// Unknown reports whether a process has to call Learn, because the registry has no ENI or does not know the instance.
// If the registry is lost while a process waits for EC2, this process may record an ENI in a registry without the
// instance.
func Unknown(s *registry.State) bool { return len(s.ENIs) == 0 || s.Instance.ID == "" }

// StaleMetadata is how long the metadata service may still list an address that has left its ENI. It is twice the
// longest time that users have seen.
const StaleMetadata = 10 * time.Minute

// pruneState removes the entries that have no meaning any more:
//
//   - waiters whose deadline has passed
//   - ADDs that have given up, and were not repeated soon
//   - failures that are older than registry.MostWait: all ADDs of that time have stopped waiting
//   - the entries of Owners whose address is not free, or has cooled for all networks and needs no release to EC2
//   - the free addresses of a /80 that have cooled and have no owner: a /80 has too many addresses to keep them all
func pruneState(s *registry.State, policy Policy, now time.Time) {
	for key, w := range s.Waiters {
		if now.After(w.Until) {
			removeWaiter(s, key, w.Until)
		}
	}
	maps.DeleteFunc(s.GaveUp, func(_ string, w registry.Waiter) bool { return now.Sub(w.Until) > Returns })
	maps.DeleteFunc(s.Owners, func(a netip.Addr, _ registry.Pod) bool {
		since, free := s.Free.At(a)
		return !free || now.Sub(since) > maxReuseWait*time.Second && !ToRelease(s, a)
	})
	maps.DeleteFunc(s.Failures, func(_ string, f registry.Failure) bool { return now.Sub(f.Since) > registry.MostWait })
	for a := range s.Free.Within(everywhere6) {
		since, _ := s.Free.At(a)
		if _, owned := s.Owners[a]; owned || now.Sub(since) <= max(policy.ReuseWait, StaleMetadata) {
			continue
		}
		if id, e := s.ENIOf(a); !slices.Contains(e.Addrs, a) {
			s.Free.Delete(a)
			notePruned(s, id, a, since)
		}
	}
}

// notePruned records, in the entry of the address's prefix, when the last lease of the address ended. The registry
// forgets when the address became free. But a collection must not count the prefix as free before this time.
func notePruned(s *registry.State, eni string, a netip.Addr, ended time.Time) {
	s.Edit(eni, func(e *registry.ENI) {
		for i, b := range e.Prefixes {
			if b.CIDR.Contains(a) && b.Since.Before(ended) {
				e.Prefixes[i].Since = ended
			}
		}
	})
}

// Note copies parts of the configuration into the registry, for a collection that does not have the configuration. Note
// writes these parts into the entries of the pool's ENIs. It also writes them into the entries of the ENIs of derived
// pools, because perhaps no pod asks for a derived pool again.
func (p *Pool) Note(s *registry.State) {
	for id, e := range s.ENIs {
		takes := p.Policy.usesENI(id, e) && p.Policy.Choice.ENI == ""
		own := e.Pool == p.Policy.Pool || Origin(e.Pool) == p.Policy.Pool
		if takes || (e.Serving || e.Managed) && own {
			e.Configure(p.Policy.Misfit(e) == "", p.Policy.Serves(e), p.Policy.Keep) // perhaps the ENI no longer fits
			s.ENIs[id] = e
		}
	}
	if s.Warm[p.Policy.Pool] != p.Policy.Warm {
		s.Warm[p.Policy.Pool] = p.Policy.Warm
	}
}

// heldAddrs returns the addresses that the interface already has, and their ENI. If one of these addresses is on no ENI
// any more, heldAddrs ends all leases of the interface.
func heldAddrs(s *registry.State, o Owner) (eni string, addrs []netip.Addr) {
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

// sortByFamily sorts addresses in the order of the policy's families. Candidates returns them in this order, but the
// registry always lists IPv4 first.
func (policy Policy) sortByFamily(addrs []netip.Addr) []netip.Addr {
	later := func(a netip.Addr) int { return min(1, max(0, slices.Index(policy.Families, nl.FamilyOf(a)))) }
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return later(a) - later(b) })
	return addrs
}

// giveUpTime returns when the process of an ADD gives up: at the deadline of ctx, or in a minute if ctx has no
// deadline.
func giveUpTime(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(time.Minute)
}

// rejectAddrs ends the owner's leases, because usedAddrs are already in use. Each of usedAddrs gets a lease without a
// key, until a collection finds that the address is no longer in use. The owner's other addresses are free again. The
// kernel shows usedAddrs at place: the path of a namespace, [routePlace], or "" if the place is not known.
func (p *Pool) rejectAddrs(ctx context.Context, o Owner, usedAddrs []netip.Addr, place string) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		for _, a := range s.HeldBy(o.Key, o.NIC) {
			if l, _ := s.Leases.At(a); slices.Contains(usedAddrs, a) {
				s.Found(a, registry.Lease{NetNS: place, ENI: l.ENI, Bound: true, Since: time.Now()})
			} else {
				endUnusedLease(s, a)
			}
		}
		return nil
	})
}
