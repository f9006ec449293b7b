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
	Addrs []netip.Addr // one of each family
	ID    string       // of the ENI that carries them
	ENI   registry.ENI
	VPC   registry.VPC

	seen *registry.State // in which it was leased
}

var (
	errNone    = errors.New("no address is free")
	errUnknown = errors.New("nothing is known of this node's ENIs yet")
)

// Acquire leases an address of each family to the owner. The same owner again gets
// the same. If none is free, one process of the node asks EC2 for all that wait, in
// the order in which they came, and the others find its answer.
func (p *Pool) Acquire(ctx context.Context, o Owner) (Allocation, error) {
	a, err := p.take(ctx, o)
	if !isNone(err) {
		return a, err
	}
	if a, err = p.queue(ctx, o); err != nil {
		return Allocation{}, errors.Join(err, p.giveUp(ctx, o))
	}
	return a, nil
}

// isNone tells whether err says that there is no address but from EC2.
func isNone(err error) bool { return errors.Is(err, errNone) || errors.Is(err, errUnknown) }

// queue waits until the owner is the one that may ask EC2, unless another has got an
// address for it by then, and asks.
func (p *Pool) queue(ctx context.Context, o Owner) (Allocation, error) {
	unlock, err := p.Registry.Lock(ctx, "grow")
	if err != nil {
		return Allocation{}, p.overdue(o, err)
	}
	defer unlock()
	for attempt := 0; ; attempt++ {
		a, err := p.take(ctx, o)
		if !isNone(err) {
			return a, err
		}
		if attempt == 0 {
			if err := p.told(o); err != nil {
				return Allocation{}, err
			}
		}
		if err = p.ask(ctx, o, attempt, errors.Is(err, errUnknown)); err != nil {
			return Allocation{}, explain(fmt.Errorf("%w: %w", errNone, err))
		}
	}
}

// ask asks EC2 for more addresses, or, if nothing is known yet, which there are. It
// fails when it makes no sense to try again: each try begins by looking at what EC2 has
// made of the one before.
func (p *Pool) ask(ctx context.Context, o Owner, attempt int, unknown bool) error {
	began, more := time.Now(), p.grow
	if unknown {
		more = p.Learn
	}
	err := more(ctx)
	if err == nil || p.found() {
		return nil
	}
	again := passing(err, attempt)
	if again {
		began = time.Time{}
	}
	if e := p.fail(ctx, o, err, began); e != nil {
		return errors.Join(err, e)
	}
	if !again || sleep(ctx, backoff(attempt), "") != nil {
		return err
	}
	return nil
}

// found tells whether there is an address: a growth that failed may have brought to an
// end what an earlier one had begun.
func (p *Pool) found() bool {
	s, err := p.Registry.View()
	if err != nil {
		return false
	}
	_, addrs := candidates(s, p.Policy, time.Now())
	return len(addrs) > 0
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
		if err != nil {
			return a, err
		}
		// The registry may not know all pods: the original plugin's have no lease.
		// The node routes to a pod, so this finds them. A lease that the owner had may
		// be that of an ADD that was killed before it came here.
		taken, err := p.routed(a.Addrs)
		if err == nil && len(taken) > 0 && !fresh {
			taken, err = without(taken, o.NetNS)
		}
		if err != nil || len(taken) == 0 {
			return a, err
		}
		if err := p.reject(ctx, o, taken); err != nil {
			return Allocation{}, err
		}
	}
}

// without are those of the addresses that the namespace at path does not have.
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

// routed are those of the addresses that the node has a route of their own to.
func (p *Pool) routed(addrs []netip.Addr) (taken []netip.Addr, err error) {
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

// reserve is take, as far as the registry goes. It tells a fresh lease from one that the owner had.
func (p *Pool) reserve(ctx context.Context, o Owner) (a Allocation, fresh bool, err error) {
	var none error
	var short bool
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		now := time.Now()
		prune(s, p.Policy, now)
		p.note(s)
		wish := s.Wishes[o.Key.String()]
		delete(s.Wishes, o.Key.String())
		id, addrs := held(s, o.Key)
		if fresh = len(addrs) == 0; fresh {
			id, addrs = candidates(s, p.Policy, now)
		}
		if len(addrs) == 0 {
			if none = errNone; unknown(s) {
				none = errUnknown
			}
			p.wait(s, o, wish, now, deadline(ctx))
			return nil
		}
		delete(s.Failures, p.concern(o))
		a = Allocation{addrs, id, s.ENIs[id], s.VPCs[s.ENIs[id].VPC], s}
		var failed error
		for _, addr := range addrs {
			failed = errors.Join(failed, s.Reserve(addr, o.lease(id)))
		}
		short = p.short(s, now)
		return failed
	})
	if fresh && err == nil && none == nil && short {
		p.refill()
	}
	return a, fresh, cmp.Or(err, none)
}

// unknown tells whether this node has yet to be learnt about. A registry that was lost
// while a process waited for EC2 has what that one has written afterwards, and no more.
func unknown(s *registry.State) bool { return len(s.ENIs) == 0 || s.Instance.ID == "" }

// prune forgets what has no meaning any more: wishes of processes that are no more,
// failures that nobody who waits now has waited for, and released addresses of a /80,
// of which there are too many to list, once they are as good as new.
func prune(s *registry.State, policy Policy, now time.Time) {
	maps.DeleteFunc(s.Wishes, func(_ string, w registry.Wish) bool { return now.After(w.Until) })
	maps.DeleteFunc(s.Failures, func(_ string, f registry.Failure) bool { return now.Sub(f.Since) > maxTimeout*time.Second })
	maps.DeleteFunc(s.Free, func(a netip.Addr, since time.Time) bool {
		if !a.Is6() || now.Sub(since) <= max(policy.ReuseWait, staleMetadata) {
			return false
		}
		_, e := s.ENIOf(a)
		return !slices.Contains(e.Addrs, a)
	})
}

// note writes down what collections, which have no configuration, have to know of it.
func (p *Pool) note(s *registry.State) {
	for _, at := range places(s, p.Policy) {
		if e := at.ENI; !e.Serving || p.Policy.Keep && !e.Keep {
			e.Serving, e.Keep = true, e.Keep || p.Policy.Keep
			s.ENIs[at.id] = e
		}
	}
	if s.Warm[p.Policy.Pool] != p.Policy.Warm {
		s.Warm[p.Policy.Pool] = p.Policy.Warm
	}
}

// held are the addresses that the attachment has already, and the ENI that they are
// on. A lease of an address that is on no ENI any more is worth nothing, and ends.
func held(s *registry.State, k registry.Key) (eni string, addrs []netip.Addr) {
	for _, h := range s.Held(k) {
		if id, _ := s.ENIOf(h); id != "" {
			eni, addrs = id, append(addrs, h)
			continue
		}
		delete(s.Leases, h)
	}
	return eni, addrs
}

// deadline is until when a wish is worth something: afterwards its process has given up.
func deadline(ctx context.Context) time.Time {
	if d, ok := ctx.Deadline(); ok {
		return d
	}
	return time.Now().Add(time.Minute)
}

// reject gives addresses that turned out to be in use to nobody that we know: they
// become leases without a key, which end when a collector finds them gone. The owner's
// others are free again.
func (p *Pool) reject(ctx context.Context, o Owner, taken []netip.Addr) error {
	return p.Registry.Update(ctx, func(s *registry.State) error {
		for _, a := range s.Held(o.Key) {
			l := s.Leases[a]
			delete(s.Leases, a)
			if slices.Contains(taken, a) {
				s.Leases[a] = registry.Lease{ENI: l.ENI, Bound: true, Since: time.Now()}
			} else {
				s.Free[a] = time.Time{}
			}
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
	used := p.used()
	return p.Registry.Update(ctx, func(s *registry.State) error {
		s.Release(time.Now(), func(a netip.Addr, l registry.Lease) bool {
			_, inUse := used.By[a]
			return l.Network == network && !slices.Contains(valid, l.Attachment) && !inUse && !used.Partial
		})
		return nil
	})
}
