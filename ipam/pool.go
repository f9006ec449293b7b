// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Pool is the addresses of a node: who has which, and how to get more.
type Pool struct {
	Cloud    *aws.Client
	Registry *registry.Registry
	Host     *nl.NS
	Policy   Policy
}

// An Owner is who asks for an address.
type Owner struct {
	registry.Key
	Pod   plugin.Pod
	NetNS string
}

func (o Owner) lease(eni string) registry.Lease {
	return registry.Lease{Key: o.Key, PodNamespace: o.Pod.Namespace, PodName: o.Pod.Name, NetNS: o.NetNS, ENI: eni, Since: time.Now()}
}

// An Allocation is what an attachment gets.
type Allocation struct {
	Addr netip.Addr
	ID   string // of the ENI that carries the address
	ENI  registry.ENI
	VPC  registry.VPC

	seen *registry.State // in which it was leased
}

var (
	errNone    = errors.New("no address is free")
	errUnknown = errors.New("nothing is known of this node's ENIs yet")
)

// Acquire leases an address to the owner. The same owner again gets the same
// address. If none is free, one process of the node asks EC2 for all that wait, in
// the order in which they came, and the others find its answer.
func (p *Pool) Acquire(ctx context.Context, o Owner) (Allocation, error) {
	a, err := p.take(ctx, o)
	if !errors.Is(err, errNone) && !errors.Is(err, errUnknown) {
		return a, err
	}
	unlock, lockErr := p.Registry.Lock(ctx, "grow")
	if lockErr != nil {
		return Allocation{}, plugin.Errorf(plugin.CodeTryAgain, "another process of this node is asking EC2: see its log", "%w: %w", err, lockErr)
	}
	defer unlock()
	for attempt := 0; ; attempt++ {
		a, err := p.take(ctx, o)
		switch {
		case errors.Is(err, errUnknown):
			err = p.Learn(ctx)
		case errors.Is(err, errNone):
			err = p.grow(ctx)
		default:
			return a, err
		}
		if err == nil {
			continue
		}
		// Each try begins by looking at what EC2 has made of the one before.
		if !passing(err, attempt) || sleep(ctx, backoff(attempt), "") != nil {
			return Allocation{}, explain(fmt.Errorf("%w: %w", errNone, err))
		}
	}
}

// passing tells whether err is likely to pass. A metadata service that does not
// answer may be overloaded, as the whole node is when it starts, or not be there.
func passing(err error, attempt int) bool {
	const few = 3
	return errors.Is(err, aws.ErrTransient) || errors.Is(err, aws.ErrNoMetadata) && attempt < few
}

// take leases an address that is free already, without asking EC2. The error is
// errNone if there is none, or errUnknown; then the registry knows that the owner waits.
func (p *Pool) take(ctx context.Context, o Owner) (Allocation, error) {
	for {
		a, fresh, err := p.reserve(ctx, o)
		if err != nil || !fresh {
			return a, err
		}
		// The registry may not know all pods: the original plugin's have no lease.
		// The node routes to a pod, so this finds them.
		used, err := p.Host.HasHostRoute(a.Addr)
		if err != nil || !used {
			return a, err
		}
		if err := p.reject(ctx, o, a.Addr); err != nil {
			return Allocation{}, err
		}
	}
}

// reserve is take, as far as the registry goes. It tells a fresh lease from one that the owner had.
func (p *Pool) reserve(ctx context.Context, o Owner) (a Allocation, fresh bool, err error) {
	var none error
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		now := time.Now()
		maps.DeleteFunc(s.Wishes, func(_ string, until time.Time) bool { return now.After(until) })
		delete(s.Wishes, o.Key.String())
		addr, had := held(s, o.Key)
		if !had {
			addr = candidate(s, p.Policy, now)
		}
		if !addr.IsValid() {
			if none = errNone; len(s.ENIs) == 0 {
				none = errUnknown
			}
			s.Wishes[o.Key.String()] = deadline(ctx)
			return nil
		}
		fresh = !had
		id, eni := s.ENIOf(addr)
		a = Allocation{addr, id, eni, s.VPCs[eni.VPC], s}
		if p.Policy.Keep && !eni.Keep {
			eni.Keep = true
			s.ENIs[id] = eni
		}
		return s.Reserve(addr, o.lease(id))
	})
	return a, fresh, cmp.Or(err, none)
}

// held is the address that the attachment has already. A lease of an address that is
// on no ENI any more is worth nothing, and ends.
func held(s *registry.State, k registry.Key) (a netip.Addr, ok bool) {
	for _, h := range s.Held(k) {
		if onENI(s, h) {
			return h, true
		}
		delete(s.Leases, h)
	}
	return a, false
}

// candidate chooses the address to lease next: on the fullest ENI, so that
// the others run empty and can be released, and there the one that has been free
// the longest, so that what remembers the last pod that had it has forgotten.
func candidate(s *registry.State, policy Policy, now time.Time) netip.Addr {
	type place struct {
		eni  string
		load int
	}
	places := map[netip.Addr]place{}
	for id, e := range s.ENIs {
		if e.Index < policy.MinIndex || e.Draining {
			continue
		}
		for _, a := range e.Addrs {
			places[a] = place{id, load(s, e)}
		}
	}
	var best netip.Addr
	for _, a := range s.Idle(now.Add(-policy.ReuseWait)) {
		if at, ok := places[a]; ok && (!best.IsValid() || at.load > places[best].load) {
			best = a
		}
	}
	return best
}

// load is the number of the ENI's addresses that are leased.
func load(s *registry.State, e registry.ENI) int {
	n := 0
	for _, a := range e.Addrs {
		if _, ok := s.Leases[a]; ok {
			n++
		}
	}
	return n
}

func onENI(s *registry.State, a netip.Addr) bool {
	id, _ := s.ENIOf(a)
	return id != ""
}

// deadline is until when a wish is worth something: afterwards its process has given up.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(time.Minute)
}

// reject gives an address that turned out to be in use to nobody that we know: it
// becomes a lease without a key, which ends when a collector finds it gone.
func (p *Pool) reject(ctx context.Context, o Owner, a netip.Addr) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		if l, ok := s.Leases[a]; ok && l.Key == o.Key {
			s.Leases[a] = registry.Lease{ENI: l.ENI, Bound: true, Since: time.Now()}
		}
		return nil
	})
}

// Release ends the lease of an attachment; its addresses cool. It asks nobody, and
// an attachment without a lease is no error. The hints are addresses that the
// attachment is said to have: if nobody that we know has them, as is so for pods of the
// original plugin, they are released too.
func (p *Pool) Release(ctx context.Context, k registry.Key, hints ...netip.Addr) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		delete(s.Wishes, k.String())
		s.Release(time.Now(), func(a netip.Addr, l registry.Lease) bool {
			return l.Key == k || l.Key == registry.Key{} && slices.Contains(hints, a)
		})
		return nil
	})
}

// Retain ends the leases of the network's attachments that are not valid, except
// those whose address is in use nevertheless: CNI's GC.
func (p *Pool) Retain(ctx context.Context, network string, valid []plugin.Attachment) error {
	used := UsedAddrs()
	return p.Registry.Update(ctx, func(s *registry.State) error {
		s.Release(time.Now(), func(a netip.Addr, l registry.Lease) bool {
			_, inUse := used.By[a]
			return l.Network == network && !slices.Contains(valid, l.Attachment) && !inUse && !used.Partial
		})
		return nil
	})
}
