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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The tags of an ENI that was made here. They are in the call that creates it, so
// an ENI without them is nobody's leak but somebody's property.
const (
	TagManaged  = "cni-ipvlan-vpc-k8s/managed"
	TagInstance = "cni-ipvlan-vpc-k8s/instance"
	TagPool     = "cni-ipvlan-vpc-k8s/pool"
)

// description is that of an ENI that was made for an instance, here or by the original.
func description(instance string) string { return "CNI-ENI " + instance }

// tags are those of a new ENI.
func (spec ENISpec) tags(instance string) map[string]string {
	tags := maps.Clone(spec.ENITags)
	if tags == nil {
		tags = map[string]string{}
	}
	tags[TagManaged], tags[TagInstance], tags[TagPool] = fmt.Sprint(spec.Managed), instance, cmp.Or(spec.Pool, defaultPool)
	return tags
}

// poolOf is the pool that an ENI's tag names.
func poolOf(e aws.ENI) string {
	if pool := e.Tags[TagPool]; pool != defaultPool {
		return pool
	}
	return ""
}

// create makes the ENI in a subnet: with prefixes if they are wanted and the subnet has
// some, else with addresses.
func (p *Pool) create(ctx context.Context, s *registry.State, subnet aws.Subnet, spec ENISpec) (aws.ENI, string, error) {
	secondary := min(max(spec.Addrs, 1), s.Instance.IPv4PerENI) - 1
	eni := aws.ENISpec{
		Subnet:         subnet.ID,
		SecurityGroups: spec.SecurityGroups,
		Description:    description(s.Instance.ID),
		Tags:           spec.tags(s.Instance.ID),
	}
	if spec.wants(IPv6) {
		eni.IPv6Prefixes = 1
	}
	if spec.Prefixes && s.Instance.IPv4PerENI > 1 && spec.wants(IPv4) {
		eni.Prefixes = min(max((secondary+blockSize-1)/blockSize, 1), s.Instance.IPv4PerENI-1)
		made, token, err := p.createENI(ctx, subnet, eni)
		if !noPrefix(err) {
			return made, token, err
		}
		eni.Prefixes = 0
	}
	if spec.wants(IPv4) {
		eni.Secondary = min(secondary, max(subnet.Free-1, 0))
	}
	made, token, err := p.createENI(ctx, subnet, eni)
	if spec.wants(IPv6) && noPrefix(err) && !errors.Is(err, aws.ErrSubnetFull) {
		eni.IPv6Prefixes, eni.IPv6 = 0, min(max(spec.Addrs, 1), s.Instance.IPv6PerENI)
		return p.createENI(ctx, subnet, eni)
	}
	return made, token, err
}

// createENI makes an ENI, with its tags and a client token in the call. The token is on
// disk before, and stays there until the ENI is attached: a crash in between
// leaves an ENI that resume finds by its tags.
func (p *Pool) createENI(ctx context.Context, subnet aws.Subnet, spec aws.ENISpec) (eni aws.ENI, token string, err error) {
	const action = "CreateNetworkInterface"
	token = newToken()
	spec.Token = token
	err = p.call(ctx, action, registry.Intent{Action: action}, func() (_ func(*registry.State), err error) {
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
	return eni, token, err
}
