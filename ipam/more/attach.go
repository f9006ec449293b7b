// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// intentLife is how long the registry keeps the intent of a call while EC2 does not show what the call has done. EC2's
// descriptions lag by seconds, in rare cases by minutes (EC2 API reference, "Eventual consistency").
const intentLife = 15 * time.Minute

// AddENI creates an ENI with the addresses that the waiting ADDs need, and attaches it.
func (p *Node) AddENI(ctx context.Context, s *registry.State) error {
	full, s, err := p.MakeRoom(ctx, s)
	if err != nil {
		return err
	}
	if full != nil {
		if p.KnowsMore(ctx, s) {
			return nil
		}
		return cmp.Or(p.chosenSubnetError(ctx, s), plugin.Errorf(plugin.CodeTryAgain, p.HintFull(s), "%w", full))
	}
	_, err = p.NewENI(ctx, ENISpec{
		Pool: p.Policy.Pool, Subnet: p.Policy.Choice.Subnet, Families: p.Policy.Families, Prefixes: p.Policy.Prefixes,
		Tags:           p.Policy.SubnetTags,
		SecurityGroups: p.Policy.SecurityGroups, ENITags: p.Policy.Tags, Tracking: p.Policy.Tracking,
		MinIndex: p.Policy.MinIndex, Managed: true,
		Keep: p.Policy.Keep || p.Policy.Warm.Min > 0,
	})
	switch groups := p.Policy.Choice.Groups; {
	case errors.Is(err, aws.ErrInstanceFull) && p.KnowsMore(ctx, s):
		return nil
	case errors.Is(err, aws.ErrNoGroup) && len(groups) > 0:
		return plugin.Errorf(plugin.CodeRefused, "ask for security groups of this VPC",
			"the pod asks for the security groups %s, and this node is in %s: %w", strings.Join(groups, ", "),
			book.VPCOf(s), err)
	}
	return err
}

// AddENIIn creates an ENI of the pool in a subnet.
func (p *Node) AddENIIn(ctx context.Context, s *registry.State, subnet string) error {
	if p.Policy.Provision == lease.ProvisionAssign {
		return plugin.Errorf(plugin.CodeTryAgain,
			`set "provision" to "full", or attach an ENI of the subnet that has the address`,
			`no ENI of this node can take the address %s, and no new ENI is created, because "provision" is "assign"`,
			addrText(p.Policy.Choice.Addrs))
	}
	there := *p
	there.Policy.Choice.Subnet = subnet
	there.Policy.Prefixes = false // on the smallest instance types, a prefix would leave no room for the chosen address
	return there.AddENI(ctx, s)
}

// MakeRoom makes room for another ENI of the instance. If MakeRoom cannot make room, the result full has the reason. If
// the instance seems full, MakeRoom first asks EC2 which ENIs are attached. Then MakeRoom deletes the ENIs that a
// collection has begun to delete. If this is not enough, MakeRoom deletes an empty ENI that gets no new pods.
func (p *Node) MakeRoom(ctx context.Context, s *registry.State) (full error, _ *registry.State, err error) {
	if full = cmp.Or(p.fullError(s), refusalError(s)); full == nil {
		return nil, s, nil
	}
	p.NoteDetached(ctx, seemsFull(s))
	for _, makeRoom := range []func(context.Context, *registry.State) (*registry.State, error){
		p.DeleteDraining, p.DeleteUnwanted} {
		if s, err = makeRoom(ctx, s); err != nil {
			return full, s, err
		}
		if full = cmp.Or(p.fullError(s), refusalError(s)); full == nil {
			return nil, s, nil
		}
	}
	return full, s, nil
}

// KnowsMore reports whether the registry now has more ENIs than s, because an operator or another program has attached
// an ENI. It asks metadata, unless a process has just done so.
func (p *Node) KnowsMore(ctx context.Context, s *registry.State) bool {
	const lately = 5 * time.Second
	now, err := p.Registry.View()
	if err != nil || len(now.ENIs) > len(s.ENIs) {
		return err == nil
	}
	for _, e := range now.ENIs {
		if time.Since(e.Read) < lately {
			return false
		}
	}
	if err := p.Learn(ctx); err != nil {
		return false
	}
	now, err = p.Registry.View()
	return err == nil && len(now.ENIs) > len(s.ENIs)
}

// An ENISpec says which ENI is wanted.
type ENISpec struct {
	Pool     string         // the pool that the ENI serves
	Families []lease.Family // families of the addresses that the ENI needs; none: IPv4
	Prefixes bool           // ask for prefixes instead of addresses, if the subnet has free prefixes
	// how many private addresses the ENI gets, including the primary address; fewer if ENI or subnet has not enough
	// room. A managed ENI gets addresses for the waiting ADDs instead
	Addrs          int
	Subnet         string            // ID of its subnet; empty: any subnet with Tags
	Tags           map[string]string // tags that its subnet must have
	SecurityGroups []string
	ENITags        map[string]string
	Tracking       registry.Tracking // timeouts; 0: the timeout of the boot ENI
	MinIndex       int
	Managed        bool // a collection may delete the ENI when it is empty
	// the configuration has skipDeallocation, or a warm.min above 0: see TagKeep of package book
	Keep bool
}

// scarceFamily returns the family whose addresses are scarce: IPv4 if the ENI needs IPv4, otherwise IPv6.
func (spec ENISpec) scarceFamily() lease.Family {
	if spec.wantsFamily(lease.IPv4) {
		return lease.IPv4
	}
	return lease.IPv6
}

// wantsFamily reports whether the ENI needs addresses of the family.
func (spec ENISpec) wantsFamily(f lease.Family) bool {
	return slices.Contains(spec.Families, f) || f == lease.IPv4 && len(spec.Families) == 0
}

// NewENI creates an ENI and attaches it. It tries those subnets of this instance's zone that have the tags of the spec.
// It fails with [aws.ErrSubnetFull] if none of these subnets has room.
func (p *Node) NewENI(ctx context.Context, spec ENISpec) (string, error) {
	id, err := p.newENI(ctx, spec)
	p.ForgetUnlessThrottled(err)
	return id, err
}

func (p *Node) newENI(ctx context.Context, spec ENISpec) (string, error) {
	// All other steps only prepare the creation, so first check whether this node may create an ENI now.
	if err := cmp.Or(p.quotaError(), p.StandingRefusal(book.CreateAction), p.StandingRefusal(book.AttachAction),
		p.AwaitTurn(ctx, book.CreateAction)); err != nil {
		return "", err
	}
	s, err := p.DescribeInstance(ctx)
	if err != nil {
		return "", err
	}
	if spec.wantsFamily(lease.IPv6) && s.Instance.IPv6PerENI == 0 {
		return "", plugin.Errorf(plugin.CodeTryAgain, hintNoIPv6, "no ENI of %s can have IPv6 addresses",
			s.Instance.Type)
	}
	subnets, err := p.subnetsInOrder(ctx, s, spec)
	if err != nil {
		return "", err
	}
	if spec.Managed {
		limit := 1 + p.gatherLimit(spec.scarceFamily(), s.Instance.IPv4PerENI-1)
		if err := p.gatherADDs(ctx, limit, pauseENI); err != nil {
			return "", err
		}
	}
	// Keep s, and not the newer state: if the registry was lost meanwhile, the newer state does not have the instance.
	seen, _, err := p.LastAttached(ctx, s)
	if err != nil {
		return "", err
	}
	spec.Tracking = spec.Tracking.Over(seen.Tracking(s))
	var full []error
	refused := map[string]error{} // by subnet
	for _, subnet := range append(unendedFirst(s, subnets), p.secondTrySubnets(s, subnets, spec)...) {
		if refused[subnet.ID] != nil {
			continue
		}
		id, err := p.newENIIn(ctx, s, subnet, spec, seen)
		switch {
		case errors.Is(err, errNotDiscarded): // do not create a second ENI: resumeCalls finishes the first one
			return id, err
		case call.IsFull(err) && errors.Is(err, aws.ErrSubnetFull):
			full = append(full, err)
		case call.IsMisplaced(err):
			refused[subnet.ID] = fmt.Errorf("%s: %w", subnet.ID, err)
		default:
			return id, err
		}
	}
	return "", subnetsError(s, spec, full, refused)
}

// newENIIn creates an ENI in a subnet, and attaches it.
func (p *Node) newENIIn(
	ctx context.Context, s *registry.State, subnet aws.Subnet, spec ENISpec, seen known.Attached,
) (string, error) {
	if err := p.StandingRefusal(book.AttachAction, subnet.ID); err != nil {
		return "", err
	}
	eni, token, err := p.createIn(ctx, s, subnet, spec)
	if err != nil {
		return "", err
	}
	eni.Tags = spec.eniTags(s.Instance.ID) // EC2 has none of these tags if the role has no permission to create tags
	return eni.ID, p.attachOurs(ctx, eni, token, spec, seen)
}

// noPlace reports whether err, the error of an attachment, means that the instance can take no ENI at all.
func noPlace(err error) bool {
	return !aws.MaybeDone(err) && (errors.Is(err, aws.ErrInstanceFull) || errors.Is(err, aws.ErrCardFull) ||
		errors.Is(err, aws.ErrNotRunning))
}

// errNotDiscarded means that a new ENI could be neither attached nor deleted.
var errNotDiscarded = errors.New("the new ENI could be neither attached nor deleted")

// errDiscarded means that a new ENI could not be attached, and was therefore deleted.
var errDiscarded = errors.New("the new ENI could not be attached, and was deleted")

// attachOurs attaches an ENI that this suite has made, and records it. It deletes a new ENI that EC2 cannot attach.
// This is so if noPlace, call.IsMisplaced or IsStuck returns true.
//
// attachOurs never deletes an ENI that is already in the registry, because pods may have its addresses. The argument
// seen has the attached ENIs, if the caller has asked EC2 for them.
func (p *Node) attachOurs(ctx context.Context, eni aws.ENI, token string, spec ENISpec, seen known.Attached) error {
	addrs, cidrs := slices.Concat(eni.Addrs, eni.IPv6Addrs), slices.Concat(eni.Prefixes, eni.IPv6Prefixes)
	subnet := registry.ENI{CIDR: eni.CIDR, CIDR6: eni.IPv6CIDR}
	if err := p.StrangeNow(ctx, eni.ID, subnet, addrs, cidrs); err != nil {
		return err
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	_, known := s.ENIs[eni.ID]
	var freeSince time.Time
	if mayHaveServed(s, eni.ID) {
		freeSince = time.Now()
	}
	on := call.Object{ENI: eni.ID, Subnet: eni.Subnet}
	if known {
		on.Subnet = eni.ID // this ENI was attached before, so a refusal of the subnet is recorded only for the ENI
	}
	if maybeOthers(s, eni) {
		// This ENI has no tags of ours, so perhaps the role may not attach it, but may attach other ENIs. So the
		// registry gets no record of a refusal: see reattach.
		on.Handled = aws.NotAllowed
	}
	var attachment string
	var at Slot
	if err = call.StandingRefusal(s, book.AttachAction, on.Subnet); err == nil {
		attachment, at, err = p.AttachAnywhere(ctx, on, spec.MinIndex, seen)
		err = p.NoteRefusal(ctx, book.AttachAction, on, err)
	}
	if !known && (noPlace(err) || call.IsMisplaced(err) || p.IsStuck(ctx, s, token, on, err)) {
		if e := p.discardENI(context.WithoutCancel(ctx), eni.ID, token); e != nil {
			return errors.Join(err, e, errNotDiscarded)
		}
		return fmt.Errorf("%w: %w", err, errDiscarded)
	}
	if err != nil {
		p.KeepMade(s.Instance.ID, eni, seen)
		return err
	}
	eni.Card, eni.Index = at.Card, at.Index
	err = p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		_, known := s.ENIs[eni.ID]
		book.Record(s, eni, spec.Managed)
		if !known { // a known ENI gets no Provisioning mark, because its Provision may have ended long ago
			book.MarkProvisioning(s, eni.ID, !spec.Managed)
		}
		book.AddAddrs(s, eni.ID, addrs, freeSince)
		book.AddPrefixes(s, eni.ID, cidrs, time.Now())
		book.CoolPrefixes(s, cidrs, freeSince)
		book.Serve(s, eni.ID, spec.Pool)
		s.Intents[token] = registry.Intent{Action: book.ModifyAction, ENI: eni.ID, Attachment: attachment,
			Since: time.Now()}
	})
	if err != nil {
		return err
	}
	if p.Mode.Defers {
		return nil
	}
	_, err = p.setDeleteOnTermination(ctx, eni.ID, attachment, token)
	return err
}

// attachIntent returns the intent to attach an ENI, or to find out whether it is attached.
func attachIntent(s *registry.State, eni string) registry.Intent {
	return registry.Intent{Action: book.AttachAction, ENI: eni, Since: time.Now(), Served: mayHaveServed(s, eni)}
}

// mayHaveServed reports whether pods may have had addresses of an unattached ENI that is not in the registry. An
// operator or another program may have detached such an ENI before the registry was lost. If this node has begun to
// make the ENI, no pod has had an address of it. The same is true if this node has had no pod since its boot (see Learn
// of package known).
//
// The intent of a creation does not name the ENI. So while the registry has unconfirmed addresses, this intent does not
// prove that this node has begun to make the ENI.
func mayHaveServed(s *registry.State, eni string) bool {
	_, known := s.ENIs[eni]
	if known || !s.Rebuilt.Since.IsZero() && !s.Rebuilt.Unconfirmed {
		return false
	}
	if book.BegunServed(s, eni) {
		return true
	}
	for _, i := range s.Intents {
		if i.Action == book.CreateAction && !s.Rebuilt.Unconfirmed || i.Action == book.AttachAction && i.ENI == eni {
			return false
		}
	}
	return true
}

// discardENI deletes an ENI that could not be attached.
func (p *Node) discardENI(ctx context.Context, eni, token string) error {
	err := p.DeleteNow(ctx, eni)
	return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) {
		if err == nil {
			delete(s.Intents, token) // otherwise the intent stays, and resumeCalls finds the ENI
		}
	}))
}
