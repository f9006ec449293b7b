// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about instances that can have no more ENIs, as the registry or a refusal of EC2 shows. An operator or
// another program may detach an ENI, and free its slot. So a growth that finds the instance full asks EC2 which ENIs
// are attached.
//
// EC2 may refuse an ENI for a reason that EC2's descriptions do not show. For example, on many types, volumes take
// slots of ENIs (EC2 user guide, "Volume limits for Nitro-based instances"). So the node remembers a refusal for some
// minutes, or until EC2 shows fewer ENIs. Without this memory, every ADD would create an ENI and delete it again.

// fullError returns why the instance can have no more ENIs, if the registry shows such a reason.
func (p *Node) fullError(s *registry.State) error {
	limit := s.Instance.ENIs
	if p.Policy.MaxENIs > 0 {
		limit = min(limit, p.Policy.MaxENIs)
	}
	if s.Attached() >= limit {
		return fmt.Errorf("%w: %s has %d ENIs of at most %d%s", aws.ErrInstanceFull, s.Instance.ID, s.Attached(), limit,
			p.Misfits(s))
	}
	if _, found := slotsOf(s, p.Policy.MinIndex, nil).nextFree(); !found {
		return fmt.Errorf("%w: %s has %d ENIs, and no free device index for pods (interfaceIndex %d)",
			aws.ErrInstanceFull, s.Instance.ID, s.Attached(), p.Policy.MinIndex)
	}
	return nil
}

const hintNoIPv6 = "correct ipFamilies, or take an instance type with IPv6"

// HintFull returns what an operator can do about a full instance. The limit comes from a key of the configuration, from
// the instance type, or from EBS volumes.
func (p *Node) HintFull(s *registry.State) string {
	if hint := p.missingCIDRHint(s); hint != "" {
		return hint // more ENIs or prefixes would not help
	}
	if s.Instance.IPv6PerENI == 0 && slices.Contains(p.Policy.Families, lease.IPv6) {
		return hintNoIPv6
	}
	const fewer = "lower --max-pods of the kubelet (see 'cni-ipvlan-vpc-k8s-tool maxpods')"
	n, refused := s.Instance, refusalError(s) != nil
	prefixes := "set prefixDelegation, "
	if p.Policy.Prefixes {
		prefixes = ""
	}
	switch most := p.Policy.MaxENIs; {
	case !refused && 0 < most && most < n.ENIs && most <= s.Attached():
		return fmt.Sprintf("maxENIs is %d (%s allows %d): raise maxENIs, %sor %s", most, n.Type, n.ENIs, prefixes,
			fewer)
	case !refused && s.Attached() < n.ENIs && p.Policy.MinIndex > 1:
		return fmt.Sprintf("lower interfaceIndex, %stake a larger instance type than %s, or %s", prefixes,
			n.Type, fewer)
	}
	if refused && s.Attached() < n.ENIs {
		return fmt.Sprintf("%s can have %d ENIs, and this node has %d, but EC2 counts more attachments. On most Nitro "+
			"types, EBS volumes take slots of ENIs: detach volumes, %stake a larger instance type, or %s", n.Type,
			n.ENIs, s.Attached(), prefixes, fewer)
	}
	return fmt.Sprintf("this %s can have no more ENIs: %stake a larger instance type, or %s", n.Type, prefixes, fewer)
}

// missingCIDRHint returns a hint if the subnet of one of the pool's ENIs has no CIDR of a family. No pod can get
// addresses of such an ENI.
func (p *Node) missingCIDRHint(s *registry.State) string {
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		if f, lacks := noCIDR(at, p.Policy.Families); lacks {
			return fmt.Sprintf("add a CIDR of %v to the subnet %s of %s, or correct ipFamilies", f, at.Subnet, at.ID)
		}
	}
	return ""
}

// noCIDR returns the first family for which the subnet of an ENI has no CIDR.
func noCIDR(at lease.Place, families []lease.Family) (f lease.Family, lacks bool) {
	for _, f := range families {
		if f == lease.IPv4 && !at.CIDR.IsValid() || f == lease.IPv6 && !at.CIDR6.IsValid() {
			return f, true
		}
	}
	return f, false
}

// refusalError returns an error if EC2 has refused a further ENI, and the node still remembers this refusal.
func refusalError(s *registry.State) error {
	if !time.Now().Before(s.Instance.FullUntil) {
		return nil
	}
	return fmt.Errorf("%w: EC2 has refused another ENI for %s. This node has %d ENIs. It asks EC2 again after %s, or "+
		"when one of these ENIs is detached", aws.ErrInstanceFull, s.Instance.ID, s.Attached(),
		s.Instance.FullUntil.Format(time.RFC3339))
}

// seemsFull reports whether the caller must ask EC2 which ENIs are attached. The caller must ask after a refusal of
// EC2, because the refusal may be out of date. The caller must also ask if there is a foreign ENI, or a draining ENI on
// request. Such an ENI may no longer be attached, and no growth deletes it. In the 30 seconds after such a question,
// seemsFull returns false.
func seemsFull(s *registry.State) bool {
	const lately = 30 * time.Second
	others := refusalError(s) != nil
	for _, e := range s.ENIs {
		others = others || (e.Foreign || e.Draining && e.OnRequest) && !e.Detached
	}
	return others && time.Since(s.Instance.FullRead) >= lately
}

// errSlots is an [aws.ErrInstanceFull] that does not come from EC2. It means that each known device index has an ENI.
var errSlots = fmt.Errorf("%w: there is an ENI at each of its device indices", aws.ErrInstanceFull)

// noteFull records that EC2 has refused a further ENI, or that EC2 shows an ENI at each device index.
func (p *Node) noteFull(ctx context.Context, attached []aws.ENI, minIndex int, why error) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		shown := &registry.State{Instance: s.Instance}
		if _, free := slotsOf(shown, minIndex, attached).nextFree(); errors.Is(why, errSlots) && free {
			return // EC2 shows a free slot, and only the registry has an ENI there
		}
		s.Instance.FullUntil, s.Instance.FullWith, s.Instance.FullRead = time.Now().Add(registry.MostFull), len(
			attached), time.Now()
	})
}
