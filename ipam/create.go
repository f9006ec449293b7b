// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The tags of an ENI that was made here. They are in the call that creates it, so
// an ENI without them is nobody's leak but somebody's property.
const (
	TagManaged  = "cni-ipvlan-vpc-k8s/managed"
	TagInstance = "cni-ipvlan-vpc-k8s/instance"
	TagPool     = "cni-ipvlan-vpc-k8s/pool"

	// TagKeep tells a collection, which has no configuration, about the pool of an ENI
	// on which there was no ADD yet since the node booted: "false" says that it need not
	// keep what nobody uses. With any other value, or without the tag, as it is of an ENI
	// that no growth has made, the collection waits for an ADD, whose configuration says
	// for itself what to keep. One that was changed to skipDeallocation meanwhile is
	// heard only then.
	TagKeep = "cni-ipvlan-vpc-k8s/keep"
)

// description is that of an ENI that was made for an instance, here or by the original.
func description(instance string) string { return "CNI-ENI " + instance }

// tags are those of a new ENI.
func (spec ENISpec) tags(instance string) map[string]string {
	tags := maps.Clone(spec.ENITags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[TagManaged], tags[TagInstance], tags[TagPool] = fmt.Sprint(spec.Managed), instance, cmp.Or(spec.Pool, lease.DefaultPool)
	if spec.Managed {
		tags[TagKeep] = fmt.Sprint(spec.Keep)
	}
	return tags
}

// label takes over what the tags of an ENI say. They may come late, when EC2 could not
// be asked at first, and say nothing, where the role may not make any.
func label(known registry.ENI, e aws.ENI) registry.ENI {
	if e.Tags[TagPool] != "" {
		known.Pool = poolOf(e)
	}
	known.Managed = known.Managed || e.Tags[TagManaged] == "true"
	known.Serving = known.Serving || e.Tags[TagKeep] == "false"
	known.Foreign = known.Foreign || foreign(e)
	return known
}

// poolOf is the pool that an ENI's tag names.
func poolOf(e aws.ENI) string {
	if pool := e.Tags[TagPool]; pool != lease.DefaultPool {
		return pool
	}
	return ""
}

// create makes the ENI in a subnet: with prefixes if they are wanted and the subnet has
// some, else with addresses.
func (p *Pool) create(ctx context.Context, s *registry.State, subnet aws.Subnet, spec ENISpec) (aws.ENI, string, error) {
	most := s.Instance.IPv4PerENI - 1 // beside the primary address
	prefixes := func(s *registry.State, e *aws.ENISpec) { e.Prefixes = min(max(blocks(p.secondary(s, spec)), 1), most) }
	addrs := func(s *registry.State, e *aws.ENISpec) {
		if spec.wants(lease.IPv4) {
			e.Secondary = min(p.secondary(s, spec), most, max(subnet.Free-1, 0))
		}
	}
	eni := aws.ENISpec{
		Subnet:         subnet.ID,
		SecurityGroups: spec.SecurityGroups,
		Description:    description(s.Instance.ID),
		Tags:           spec.tags(s.Instance.ID),
	}
	if spec.wants(lease.IPv6) {
		eni.IPv6Prefixes = 1
	}
	if spec.Prefixes && most > 0 && spec.wants(lease.IPv4) {
		made, token, err := p.createENI(ctx, subnet, eni, prefixes)
		if !noPrefix(err) {
			return made, token, err
		}
	}
	made, token, err := p.createENI(ctx, subnet, eni, addrs)
	if spec.wants(lease.IPv6) && noPrefix(err) && !errors.Is(err, aws.ErrSubnetFull) {
		eni.IPv6Prefixes, eni.IPv6 = 0, min(p.secondary(s, spec)+1, s.Instance.IPv6PerENI)
		return p.createENI(ctx, subnet, eni, addrs)
	}
	return made, token, err
}

// secondary is how many addresses a new ENI needs beside its primary one.
func (p *Pool) secondary(s *registry.State, spec ENISpec) int {
	if spec.Managed {
		return p.want(s) - 1
	}
	return max(spec.Addrs-1, 0)
}

// createENI makes an ENI of a size that is decided right before the call, with its tags
// and a client token in it. The intent is on disk before, and stays there until the ENI
// is attached: a crash in between leaves an ENI that resume finds by its description.
func (p *Pool) createENI(ctx context.Context, subnet aws.Subnet, spec aws.ENISpec, size func(*registry.State, *aws.ENISpec)) (eni aws.ENI, token string, err error) {
	const action = "CreateNetworkInterface"
	if err := p.withinQuota(); err != nil {
		return aws.ENI{}, "", err
	}
	err = p.call(ctx, action, registry.Intent{Action: action}, func(s *registry.State) (_ func(*registry.State), err error) {
		// Another try may ask for more, and EC2 wants another token for that.
		token = newToken()
		spec := spec
		spec.Token = token
		size(s, &spec)
		eni, err = p.Cloud.CreateENI(ctx, spec)
		if e, ok := errors.AsType[*aws.Error](err); ok && len(spec.Tags) > 0 && errors.Is(err, aws.ErrDenied) && strings.Contains(e.Message, "CreateTags") {
			// The original needed no such permission. Without tags nobody but this
			// node's registry knows that the ENI may be deleted.
			slog.Warn("the instance role does not allow ec2:CreateTags: the ENI has no tags", "error", err)
			spec.Tags = nil
			eni, err = p.Cloud.CreateENI(ctx, spec)
		}
		eni.CIDR, eni.IPv6CIDR = subnet.CIDR, subnet.IPv6CIDR // EC2 leaves them out
		return func(s *registry.State) {
			s.Intents[token] = registry.Intent{Action: "AttachNetworkInterface", ENI: eni.ID, Since: time.Now()}
		}, err
	})
	return eni, token, p.noteQuota(ctx, err)
}
