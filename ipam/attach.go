// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// intentLife is how long an intent without a trace in EC2 is believed to have
// been carried out: describes lag behind by seconds, seldom by minutes (EC2 API
// reference, "Eventual consistency").
const intentLife = 15 * time.Minute

// newToken is a client token: at most 64 ASCII characters (EC2 API reference,
// "Ensuring idempotency").
func newToken() string { return rand.Text() }

// addENI creates an ENI that carries what the waiting ADDs need, and attaches it.
// A subnet without addresses leads to the next subnet.
func (p *Pool) addENI(ctx context.Context, s *registry.State) error {
	full := p.full(s)
	if full != nil {
		var err error
		if s, err = p.drained(ctx, s); err != nil {
			return err
		}
		full = p.full(s)
	}
	if full == nil && time.Now().Before(s.Instance.FullUntil) {
		full = fmt.Errorf("%w: EC2 has said so of %s, which has %d ENIs that are known", aws.ErrInstanceFull, s.Instance.ID, len(s.ENIs))
	}
	if full != nil {
		if p.knowsMore(ctx, s) {
			return nil
		}
		return plugin.Errorf(plugin.CodeTryAgain, "lower --max-pods (see 'cni-ipvlan-vpc-k8s-tool maxpods'), raise maxENIs, or take a larger instance type", "%w", full)
	}
	_, err := p.NewENI(ctx, ENISpec{
		Pool: p.Policy.Pool, Families: p.Policy.Families, Prefixes: p.Policy.Prefixes, Tags: p.Policy.SubnetTags,
		SecurityGroups: p.Policy.SecurityGroups, ENITags: p.Policy.Tags, MinIndex: p.Policy.MinIndex, Managed: true,
		Keep: p.Policy.Keep || p.Policy.Warm.Min > 0,
	})
	if errors.Is(err, aws.ErrInstanceFull) && p.knowsMore(ctx, s) {
		return nil
	}
	return err
}

// full says why the instance can have no more ENIs, by what the registry knows; nil if it can.
func (p *Pool) full(s *registry.State) error {
	limit := s.Instance.ENIs
	if p.Policy.MaxENIs > 0 {
		limit = min(limit, p.Policy.MaxENIs)
	}
	if len(s.ENIs) >= limit {
		return fmt.Errorf("%w: %s has %d ENIs of at most %d", aws.ErrInstanceFull, s.Instance.ID, len(s.ENIs), limit)
	}
	if _, found := seatsOf(s, p.Policy.MinIndex, nil).next(); !found {
		return fmt.Errorf("%w: %s has %d ENIs, and no device index is left that is for pods", aws.ErrInstanceFull, s.Instance.ID, len(s.ENIs))
	}
	return nil
}

// knowsMore tells whether there are more ENIs than in s, of which the registry knows now:
// others attach some, and EC2 or the metadata service may have kept one from us. It asks
// once a minute at most.
func (p *Pool) knowsMore(ctx context.Context, s *registry.State) bool {
	for _, e := range s.ENIs {
		if time.Since(e.Read) < time.Minute {
			return false
		}
	}
	if err := p.Learn(ctx); err != nil {
		return false
	}
	now, err := p.Registry.View()
	return err == nil && len(now.ENIs) > len(s.ENIs)
}

// drained deletes the ENIs that a collection has begun to delete, and returns what is
// left. They are in the way of a new one until the collection is done with them; if it
// was killed, until the next.
func (p *Pool) drained(ctx context.Context, s *registry.State) (*registry.State, error) {
	for id, e := range s.ENIs {
		if !e.Draining {
			continue
		}
		if err := p.deleteENI(ctx, id); err != nil {
			return nil, fmt.Errorf("delete %s to make room for another: %w", id, err)
		}
	}
	return p.Registry.View()
}

// An ENISpec says which ENI is wanted.
type ENISpec struct {
	Pool           string            // that it serves
	Families       []lease.Family    // of the addresses that it needs; none: IPv4
	Prefixes       bool              // rather than addresses, where the subnet has some
	Addrs          int               // private addresses, the primary one included; as many as fit at most; if Managed: as many as the waiting ADDs need
	Tags           map[string]string // of its subnet
	SecurityGroups []string
	ENITags        map[string]string
	MinIndex       int
	Managed        bool // may be released again when it is empty
	Keep           bool // but not before an ADD says so: skipDeallocation, or addresses to keep ready
}

// family is the one whose addresses are few: IPv4, if the ENI has that.
func (spec ENISpec) family() lease.Family { return lease.Family(!spec.wants(lease.IPv4)) }

// wants tells whether the ENI needs addresses of the family.
func (spec ENISpec) wants(f lease.Family) bool {
	return slices.Contains(spec.Families, f) || f == lease.IPv4 && len(spec.Families) == 0
}

// NewENI creates an ENI in one of the subnets of this instance's zone that have the
// tags, and attaches it. It fails with [aws.ErrSubnetFull] if none of them has room.
func (p *Pool) NewENI(ctx context.Context, spec ENISpec) (string, error) {
	s, err := p.describeInstance(ctx)
	if err != nil {
		return "", err
	}
	subnets, err := p.subnets(ctx, s, spec)
	if err != nil {
		return "", err
	}
	if spec.Managed {
		if err := p.gather(ctx, 1+p.most(spec.family(), s.Instance.IPv4PerENI-1)); err != nil {
			return "", err
		}
	}
	var why []error
	for _, subnet := range subnets {
		eni, token, err := p.create(ctx, s, subnet, spec)
		if errors.Is(err, aws.ErrSubnetFull) {
			why = append(why, err)
			continue
		}
		if err != nil {
			return "", err
		}
		return eni.ID, p.attach(ctx, eni, token, spec)
	}
	return "", plugin.Errorf(plugin.CodeTryAgain, "add a subnet with these tags to the VPC, in this zone",
		"%w: none of the %d subnets of %s in %s with the tags %v has an address left: %w",
		aws.ErrSubnetFull, len(subnets), vpcOf(s), s.Instance.Zone, spec.Tags, errors.Join(why...))
}

// vpcOf is the VPC of the instance: that of its boot ENI, or, while metadata hides that,
// of another.
func vpcOf(s *registry.State) (vpc string) {
	for _, e := range s.ENIs {
		if e.Index == 0 && e.Card == 0 {
			return e.VPC
		}
		vpc = e.VPC
	}
	return vpc
}

// subnets lists the subnets of the instance's zone that have the tags, in the order
// in which this node tries them.
func (p *Pool) subnets(ctx context.Context, s *registry.State, spec ENISpec) ([]aws.Subnet, error) {
	all, err := p.Cloud.Subnets(ctx, vpcOf(s), s.Instance.Zone)
	if err != nil {
		return nil, err
	}
	fit := slices.DeleteFunc(all, func(n aws.Subnet) bool {
		return !hasTags(n.Tags, spec.Tags) ||
			spec.wants(lease.IPv4) && !n.CIDR.IsValid() || spec.wants(lease.IPv6) && !n.IPv6CIDR.IsValid() || n.CIDR.IsValid() && n.Free == 0
	})
	own := map[string]int{}
	for _, e := range s.ENIs {
		own[e.Subnet]++
	}
	spread(fit, s.Instance.ID, own)
	return fit, nil
}

func hasTags(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}

// spread orders the subnets: first those in which the instance has the fewest ENIs of
// its own, and among these by weighted rendezvous hashing: each node has an order of
// its own, in which a subnet with twice the free addresses comes first twice as often. A
// thousand nodes that start together therefore do not all ask for the same one.
func spread(subnets []aws.Subnet, instance string, own map[string]int) {
	score := func(n aws.Subnet) float64 {
		h := fnv.New64a()
		fmt.Fprint(h, instance, n.ID)
		u := (float64(mix(h.Sum64())>>11) + 0.5) / (1 << 53)
		return -float64(n.Free) / math.Log(u)
	}
	slices.SortFunc(subnets, func(a, b aws.Subnet) int {
		return cmp.Or(cmp.Compare(own[a.ID], own[b.ID]), cmp.Compare(score(b), score(a)), strings.Compare(a.ID, b.ID))
	})
}

// mix spreads the low bits of a FNV hash over all (the finalizer of splitmix64).
func mix(h uint64) uint64 {
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return h ^ h>>31
}

// errDiscarded says that nothing is left of an ENI that could not be attached.
var errDiscarded = errors.New("the ENI is deleted again")

// attach attaches an ENI of ours and records it. If the instance can have no more, the
// ENI is deleted again.
func (p *Pool) attach(ctx context.Context, eni aws.ENI, token string, spec ENISpec) error {
	addrs, cidrs := slices.Concat(eni.Addrs, eni.IPv6Addrs), slices.Concat(eni.Prefixes, eni.IPv6Prefixes)
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	if err := strange(s, eni.ID, registry.ENI{CIDR: eni.CIDR, CIDR6: eni.IPv6CIDR}, addrs, cidrs); err != nil {
		return err
	}
	attachment, at, err := p.attachAnywhere(ctx, eni.ID, spec.MinIndex)
	if errors.Is(err, aws.ErrInstanceFull) || errors.Is(err, aws.ErrCardFull) || errors.Is(err, aws.ErrNotRunning) {
		if e := p.discard(context.WithoutCancel(ctx), eni.ID, token); e != nil {
			return errors.Join(err, e)
		}
		return fmt.Errorf("%w: %w", err, errDiscarded)
	}
	if err != nil {
		return err
	}
	eni.Card, eni.Index = at.card, at.index
	err = p.Registry.Change(ctx, func(s *registry.State) {
		record(s, eni, spec.Managed)
		addAddrs(s, eni.ID, addrs, time.Time{})
		addPrefixes(s, eni.ID, cidrs, time.Time{})
		serve(s, eni.ID, spec.Pool)
		s.Intents[token] = registry.Intent{Action: modify, ENI: eni.ID, Since: time.Now()}
	})
	if err != nil {
		return err
	}
	return p.deleteOnTermination(ctx, eni.ID, attachment, token)
}

// record enters an ENI that is attached.
func record(s *registry.State, e aws.ENI, managed bool) {
	known := s.ENIs[e.ID]
	known.MAC, known.Index, known.Card, known.Managed, known.Read = e.MAC, e.Index, e.Card, managed, time.Now()
	known.Subnet, known.VPC = e.Subnet, e.VPC
	if e.CIDR.IsValid() || e.IPv6CIDR.IsValid() {
		known.CIDR, known.CIDR6 = e.CIDR, e.IPv6CIDR
	}
	s.ENIs[e.ID] = known
}

// serve says which pool an ENI serves.
func serve(s *registry.State, id, pool string) {
	e := s.ENIs[id]
	e.Pool, e.Serving = pool, true
	s.ENIs[id] = e
}

// modify is the action of an intent that may wait: see deleteOnTermination.
const modify = "ModifyNetworkInterfaceAttribute"

// deleteOnTermination lets EC2 delete the ENI together with the instance. An ENI
// works without, so a failure is no reason to keep a pod waiting: the intent stays,
// and the next growth or collection tries again.
func (p *Pool) deleteOnTermination(ctx context.Context, eni, attachment, token string) error {
	if err := p.Cloud.DeleteOnTermination(ctx, eni, attachment); err != nil {
		slog.Warn("ENI would outlive the instance: will try again", "eni", eni, "error", err)
		return nil
	}
	return p.Registry.Change(ctx, func(s *registry.State) { delete(s.Intents, token) })
}

// attachAnywhere attaches the ENI where there is room. Another program may take the place
// between our look and our call.
func (p *Pool) attachAnywhere(ctx context.Context, eni string, least int) (attachment string, at seat, err error) {
	s, err := p.describeInstance(ctx)
	if err != nil {
		return "", at, err
	}
	attached, err := p.Cloud.DescribeENIs(ctx, aws.ByInstance(s.Instance.ID))
	if err != nil {
		return "", at, err
	}
	const tries = 5
	free := seatsOf(s, least, attached)
	for range tries {
		next, found := free.next()
		if !found {
			return "", at, noneLeft(err)
		}
		at = next
		if attachment, err = p.attachAt(ctx, s.Instance.ID, eni, at); err == nil || !free.refused(at, err) {
			return attachment, at, err
		}
	}
	return "", at, err
}

// attachAt attaches the ENI. EC2 may not know yet what it has just created
// (hashicorp/terraform-provider-aws#35568), so that is asked again for a while.
func (p *Pool) attachAt(ctx context.Context, instance, eni string, at seat) (attachment string, err error) {
	const action, young = "AttachNetworkInterface", 10 * time.Second
	for start := time.Now(); ; {
		err = p.call(ctx, action, registry.Intent{Action: action, ENI: eni}, func(*registry.State) (_ func(*registry.State), err error) {
			attachment, err = p.Cloud.AttachENI(ctx, eni, instance, at.card, at.index)
			return func(*registry.State) {}, err
		})
		if !errors.Is(err, aws.ErrNotFound) || time.Since(start) > young {
			return attachment, err
		}
		if e := sleep(ctx, backoff(0), "attach "+eni); e != nil {
			return "", errors.Join(err, e)
		}
	}
}

// discard deletes an ENI that could not be attached, and remembers for a while that
// the instance is full, lest every ADD makes an ENI and deletes it again.
func (p *Pool) discard(ctx context.Context, eni, token string) error {
	const while = 5 * time.Minute
	err := p.Cloud.DeleteENI(ctx, eni)
	return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) {
		s.Instance.FullUntil = time.Now().Add(while)
		if err == nil {
			delete(s.Intents, token) // else resume will find the ENI, which may be too new for EC2 to delete
		}
	}))
}
