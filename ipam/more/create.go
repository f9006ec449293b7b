// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// eniTags returns the tags of a new ENI.
func (spec ENISpec) eniTags(instance string) map[string]string {
	tags := maps.Clone(spec.ENITags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[book.TagManaged], tags[book.TagInstance], tags[book.TagPool] = fmt.Sprint(spec.Managed), instance,
		cmp.Or(spec.Pool, lease.DefaultPool)
	if spec.Managed {
		tags[book.TagKeep] = fmt.Sprint(spec.Keep)
	}
	return tags
}

// createIn creates an ENI in a subnet. If the spec wants prefixes, and EC2 gives prefixes, the ENI gets IPv4 prefixes.
// Otherwise it gets IPv4 addresses. For IPv6, the ENI gets one prefix if possible.
func (p *Node) createIn(
	ctx context.Context, s *registry.State, subnet aws.Subnet, spec ENISpec,
) (aws.ENI, string, error) {
	most := s.Instance.IPv4PerENI - 1 // besides the primary address
	wanted := 0
	prefixes := func(s *registry.State, e *aws.ENISpec) {
		wanted = min(max(book.BlocksFor(p.secondaryAddrs(s, spec)), 1), most)
		e.Prefixes = wanted
	}
	addrs := func(s *registry.State, e *aws.ENISpec) {
		if spec.wantsFamily(lease.IPv4) {
			e.Secondary = min(p.secondaryAddrs(s, spec), most, max(subnet.Free-1, 0))
		}
	}
	eni := aws.ENISpec{
		Subnet:         subnet.ID,
		SecurityGroups: spec.SecurityGroups,
		Description:    book.Description(s.Instance.ID),
		Tags:           spec.eniTags(s.Instance.ID),
		Tracking:       aws.Tracking(spec.Tracking),
	}
	switch {
	case !spec.wantsFamily(lease.IPv6):
	case s.Instance.NoPrefixes: // EC2 would create an ENI with a prefix, and then refuse to attach it
		eni.IPv6 = min(p.secondaryAddrs(s, spec)+1, s.Instance.IPv6PerENI)
	default:
		eni.IPv6Prefixes = 1
	}
	if spec.Prefixes && !s.Instance.NoPrefixes && most > 0 && spec.wantsFamily(lease.IPv4) && subnet.Free > 1 {
		made, token, err := p.createENI(ctx, subnet, eni, prefixes)
		if isPrefixRefusal(err) && errors.Is(err, aws.ErrSubnetFull) && wanted > 1 { // EC2 gives all or nothing
			made, token, err = p.createENI(ctx, subnet, eni, func(_ *registry.State, e *aws.ENISpec) { e.Prefixes = 1 })
		}
		if !isPrefixRefusal(err) {
			return made, token, err
		}
	}
	made, token, err := p.createENI(ctx, subnet, eni, addrs)
	if spec.wantsFamily(lease.IPv6) && isPrefixRefusal(err) && !errors.Is(err, aws.ErrSubnetFull) {
		eni.IPv6Prefixes, eni.IPv6 = 0, min(p.secondaryAddrs(s, spec)+1, s.Instance.IPv6PerENI)
		return p.createENI(ctx, subnet, eni, addrs)
	}
	return made, token, err
}

// secondaryAddrs returns how many addresses a new ENI needs besides its primary address.
func (p *Node) secondaryAddrs(s *registry.State, spec ENISpec) int {
	if spec.Managed {
		return p.wantedForNewENI(s) - 1
	}
	return max(spec.Addrs-1, 0)
}

// createENI creates an ENI with tags. Right before the call, setCount sets the number of addresses or prefixes. The
// intent stays until the ENI is attached. If the process dies before that, resumeCalls finds the ENI by its
// description.
func (p *Node) createENI(
	ctx context.Context, subnet aws.Subnet, spec aws.ENISpec, setCount func(*registry.State, *aws.ENISpec),
) (aws.ENI, string, error) {
	// The original plugin needed no permission to create tags, so a role may lack this permission. Without tags, only
	// the registry shows that this node may delete the ENI. But with several pools, only a tag names the ENI's pool.
	single := !p.Policy.Pools && spec.Tags[book.TagPool] == lease.DefaultPool
	again := func(err error) bool { return single && isTagRefusal(err) }
	eni, token, err := p.createOnce(ctx, subnet, spec, setCount, again)
	if denied := err; again(denied) {
		slog.Warn("the instance role does not allow ec2:CreateTags: the new ENI has no tags", "error", denied)
		spec.Tags = nil
		if eni, token, err = p.createOnce(ctx, subnet, spec, setCount, aws.NotAllowed); aws.NotAllowed(err) {
			// Record the first refusal, which names the permission that an operator must add.
			err = p.NoteRefusal(ctx, book.CreateAction, call.Object{Subnet: subnet.ID}, denied)
		}
	}
	return eni, token, p.noteQuota(ctx, err)
}

// isTagRefusal reports whether EC2 has refused to create an ENI, because the role has no permission to create tags.
func isTagRefusal(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && aws.Undone(err) && errors.Is(err, aws.ErrDenied) && strings.Contains(e.Message, "CreateTags")
}

// createOnce repeats an earlier creation with an unknown outcome, or creates a new ENI. Each creation has its own
// client token, which is the key of its intent. If handled returns true for a refusal of EC2, the caller handles the
// refusal, and Call does not record it.
func (p *Node) createOnce(
	ctx context.Context, subnet aws.Subnet, spec aws.ENISpec, setCount func(*registry.State, *aws.ENISpec),
	handled func(error) bool,
) (eni aws.ENI, token string, err error) {
	const action = book.CreateAction
	asked := spec
	begin := func(s *registry.State) (string, bool) {
		if token := unendedToken(s, spec); token != "" {
			return token, true
		}
		asked = spec
		setCount(s, &asked)
		return call.NewIntent(registry.Intent{Action: action, Wanted: wantedRecord(asked)})(s)
	}
	on := call.Object{Subnet: subnet.ID, Handled: func(err error) bool {
		return asked.Prefixes+asked.IPv6Prefixes > 0 && isPrefixRefusal(err) || handled(err)
	}}
	err = p.Call(ctx, action, on, begin, func(s *registry.State, key string) (_ func(*registry.State), err error) {
		token = key
		eni, err = p.Cloud.CreateENI(ctx, specOf(s.Intents[token].Wanted, token, spec.Description))
		if err == nil {
			err = book.StrangeNew(s, eni, spec.Description)
		}
		eni.CIDR, eni.IPv6CIDR = subnet.CIDR, subnet.IPv6CIDR // EC2's answer lacks the CIDRs
		return func(s *registry.State) {
			s.Intents[token] = registry.Intent{Action: book.AttachAction, ENI: eni.ID, Since: time.Now()}
		}, err
	})
	return eni, token, err
}

// wantedRecord returns the parameters of a creation for the registry. To repeat the creation, a process restores the
// parameters by specOf.
func wantedRecord(spec aws.ENISpec) registry.Wanted {
	return registry.Wanted{Subnet: spec.Subnet, SecurityGroups: spec.SecurityGroups, Tags: spec.Tags,
		Tracking:  registry.Tracking(spec.Tracking),
		Secondary: spec.Secondary, Prefixes: spec.Prefixes, IPv6: spec.IPv6, IPv6Prefixes: spec.IPv6Prefixes}
}

func specOf(w registry.Wanted, token, description string) aws.ENISpec {
	return aws.ENISpec{Token: token, Description: description, Subnet: w.Subnet, SecurityGroups: w.SecurityGroups,
		Tags:     w.Tags,
		Tracking: aws.Tracking(w.Tracking), Secondary: w.Secondary, Prefixes: w.Prefixes, IPv6: w.IPv6,
		IPv6Prefixes: w.IPv6Prefixes}
}

// unendedToken returns the client token of an earlier creation with an unknown outcome, or "". The subnet, the groups
// and the tags of that creation are those of the spec. The earlier creation may have made an ENI that EC2 does not show
// yet (EC2 API reference, "Eventual consistency"). If the caller repeats the call with this token, EC2 creates no
// second ENI.
func unendedToken(s *registry.State, spec aws.ENISpec) (token string) {
	for t, i := range s.Intents {
		if i.Subnet == spec.Subnet && slices.Equal(i.SecurityGroups, spec.SecurityGroups) &&
			maps.Equal(i.Tags, spec.Tags) {
			token = max(token, t)
		}
	}
	return token
}

// unendedFirst moves a subnet to the front if a creation with an unknown outcome is for this subnet.
func unendedFirst(s *registry.State, subnets []aws.Subnet) []aws.Subnet {
	begun := map[string]bool{}
	for _, i := range s.Intents {
		begun[i.Subnet] = true
	}
	var first, rest []aws.Subnet
	for _, n := range subnets {
		if begun[n.ID] {
			first = append(first, n)
		} else {
			rest = append(rest, n)
		}
	}
	return append(first, rest...)
}
