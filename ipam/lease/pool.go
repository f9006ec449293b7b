// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// A Pool is the addresses that a node has, and who has which.
type Pool struct {
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
	Fresh bool // the attachment had none before

	seen *registry.State // in which it was leased
}

// Why an ADD has to ask EC2, or, where nothing is known yet, the metadata service first.
var (
	ErrNone    = errors.New("no address is free")
	ErrUnknown = errors.New("nothing is known of this node's ENIs yet")
	errPeers   = errors.New("the peers of the VPC are not known, or too old")
)

// IsNone tells whether err says that there is no answer but from EC2.
func IsNone(err error) bool { return isShort(err) || errors.Is(err, errPeers) }

// isShort tells whether err says that the attachment has no address, and none is free.
func isShort(err error) bool { return errors.Is(err, ErrNone) || errors.Is(err, ErrUnknown) }

// Take leases an address of each family to the owner. The same owner again gets the
// same. The error is ErrNone if none is free, or ErrUnknown; then the registry knows
// that the owner waits.
func (p *Pool) Take(ctx context.Context, o Owner) (Allocation, error) {
	for {
		a, err := p.reserve(ctx, o)
		if err != nil {
			return a, err
		}
		// The registry may not know all pods: the original plugin's have no lease.
		// The node routes to a pod, so this finds them. A lease that the owner had may
		// be that of an ADD that was killed before it came here.
		taken, err := p.routed(a.Addrs)
		if err == nil && len(taken) > 0 && !a.Fresh {
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

// reserve is Take, as far as the registry goes.
func (p *Pool) reserve(ctx context.Context, o Owner) (a Allocation, err error) {
	var none error
	var short bool
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		now := time.Now()
		prune(s, p.Policy, now)
		p.Note(s)
		wish := s.Wishes[o.Key.String()]
		delete(s.Wishes, o.Key.String())
		id, addrs := held(s, o.Key)
		fresh := len(addrs) == 0
		if fresh {
			id, addrs = Candidates(s, p.Policy, now)
		}
		if len(addrs) == 0 {
			if none = ErrNone; Unknown(s) {
				none = ErrUnknown
			}
			p.wait(s, o, wish, now, deadline(ctx))
			return nil
		}
		delete(s.Failures, p.Concern(o))
		a = Allocation{addrs, id, s.ENIs[id], s.VPCs[s.ENIs[id].VPC], fresh, s}
		var failed error
		for _, addr := range addrs {
			failed = errors.Join(failed, s.Reserve(addr, o.lease(id)))
		}
		short = p.Short(s, now)
		return failed
	})
	if a.Fresh && err == nil && short {
		p.refill()
	}
	return a, cmp.Or(err, none)
}

// Unknown tells whether this node has yet to be learnt about. A registry that was lost
// while a process waited for EC2 has what that one has written afterwards, and no more.
func Unknown(s *registry.State) bool { return len(s.ENIs) == 0 || s.Instance.ID == "" }

// StaleMetadata is for how long the metadata service may list an address that has
// left the ENI. Minutes were seen; we double what its users saw.
const StaleMetadata = 10 * time.Minute

// prune forgets what has no meaning any more: wishes of processes that are no more,
// failures that nobody who waits now has waited for, and released addresses of a /80,
// of which there are too many to list, once they are as good as new.
func prune(s *registry.State, policy Policy, now time.Time) {
	maps.DeleteFunc(s.Wishes, func(_ string, w registry.Wish) bool { return now.After(w.Until) })
	maps.DeleteFunc(s.Failures, func(_ string, f registry.Failure) bool { return now.Sub(f.Since) > maxTimeout*time.Second })
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

// Note writes down what collections, which have no configuration, have to know of it.
func (p *Pool) Note(s *registry.State) {
	for id, e := range s.ENIs {
		if p.Policy.takes(e) && (!e.Serving || p.Policy.Keep && !e.Keep) {
			e.Serving, e.Keep = true, e.Keep || p.Policy.Keep
			s.ENIs[id] = e
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
		s.Leases.Delete(h)
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
			l, _ := s.Leases.At(a)
			s.Leases.Delete(a)
			if slices.Contains(taken, a) {
				s.Leases.Set(a, registry.Lease{ENI: l.ENI, Bound: true, Since: time.Now()})
			} else {
				s.Free.Set(a, time.Time{})
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
	return p.Registry.Change(ctx, func(s *registry.State) {
		delete(s.Wishes, k.String())
		s.ReleaseOf(k, time.Now(), hints...)
	})
}

// Retain ends the leases of the network's attachments that are not valid, except
// those whose address is in use nevertheless: CNI's GC.
func (p *Pool) Retain(ctx context.Context, network string, valid []plugin.Attachment) error {
	used := p.Used()
	return p.Registry.Update(ctx, func(s *registry.State) error {
		s.Release(time.Now(), func(a netip.Addr, l registry.Lease) bool {
			_, inUse := used.By[a]
			return l.Network == network && !slices.Contains(valid, l.Attachment) && !inUse && !used.Partial
		})
		return nil
	})
}
