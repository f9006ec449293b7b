// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package asked

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// This file is about ENIs for which pods ask by ID. An operator or another program has created these ENIs. The node
// attaches such an ENI for the first pod, and detaches it after the last pod: see package less. The node changes
// nothing else of the ENI: no addresses, no tags, no DeleteOnTermination. The node never deletes the ENI.
//
// A node recognizes such an ENI by the tags in requests.enis, even after the loss of the registry. Only pods that ask
// for the ENI get its addresses. If an operator has attached such an ENI, and no pod uses it, a collection detaches it.

// AttachChosen attaches the ENI for which the pod asks, and records the ENI with its addresses. If the ENI is already
// in the registry, and attached to this node, AttachChosen only updates the ENI's addresses in the registry. If no
// address of the ENI is free after this update, the error says which pods use the addresses.
func (p *Node) AttachChosen(ctx context.Context, s *registry.State) error {
	id := p.Policy.Choice.ENI
	if user := p.Policy.Choice.Apart(s, id); user != "" {
		return plugin.Errorf(plugin.CodeTryAgain,
			"wait until the pod that uses the ENI has ended, or ask for another ENI",
			"the pod asks for %s, which %s uses, and one of the two pods asks for the whole ENI", id, user)
	}
	e, err := p.describeChosen(ctx, s, id)
	if err != nil {
		return err
	}
	if e, err = p.withZoneCIDRs(ctx, s, e); err != nil {
		return err
	}
	if _, known := s.ENIs[id]; known && e.Instance != "" {
		return p.updateChosen(ctx, s, e)
	}
	if e.Instance != "" {
		return p.recordChosen(ctx, e, book.Begun(s, id))
	}
	full, s, err := p.MakeRoom(ctx, s)
	if err != nil {
		return err
	}
	if full != nil {
		return plugin.Errorf(plugin.CodeTryAgain, p.HintFull(s), "attach %s, for which the pod asks: %w", id, full)
	}
	token := call.NewToken()
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		if s.ENIs[id].Draining {
			return detachingError(id)
		}
		s.Intents[token] = registry.Intent{Action: book.AttachAction, ENI: id, Since: time.Now()}
		return nil
	})
	if err != nil {
		return err
	}
	_, at, err := p.AttachAnywhere(ctx, call.Object{ENI: id}, p.Policy.MinIndex, known.Attached{})
	if err != nil {
		return p.endRefused(ctx, token, err)
	}
	e.Card, e.Index = at.Card, at.Index
	return p.recordChosen(ctx, e, true)
}

// endRefused removes the intent of an attachment if EC2 has refused the attachment. It returns err.
func (p *Node) endRefused(ctx context.Context, token string, err error) error {
	if aws.MaybeDone(err) {
		return err
	}
	return errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		delete(s.Intents, token)
	}))
}

// describeChosen asks EC2 to describe an ENI. It returns an error if the pod cannot have this ENI on this node.
func (p *Node) describeChosen(ctx context.Context, s *registry.State, id string) (aws.ENI, error) {
	refuse := func(hint, format string, args ...any) (aws.ENI, error) {
		return aws.ENI{}, plugin.Errorf(plugin.CodeRefused, hint, "the pod asks for %s, but %w", id,
			fmt.Errorf(format, args...))
	}
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil && !errors.Is(err, aws.ErrNotFound) {
		return aws.ENI{}, err
	}
	if len(enis) == 0 {
		return refuse("ask for an ENI of this account and region", "EC2 knows no such ENI")
	}
	e, self := enis[0], s.Instance.ID
	switch {
	case !p.Policy.Choice.Allows(e.Tags):
		return refuse("add the tag to the ENI, or correct \"enis\" in \"requests\"",
			"the key \"requests\" allows only ENIs with the tag %s", tagSetsText(p.Policy.Choice.Tags))
	case book.Foreign(e):
		return refuse("remove the tag, or ask for another ENI",
			"this ENI has the tag %s=true, so this node must not touch it", book.TagNoManage)
	case book.ForPods(e):
		return refuse("ask for an ENI that an operator has created", "this ENI was created for the pods of a pool")
	case e.Instance == self && book.IsBoot(s.ENIs[e.ID], e):
		return refuse("ask for another ENI", "this ENI is the boot ENI of this node")
	case e.Instance != "" && e.Instance != self:
		return aws.ENI{}, plugin.Errorf(plugin.CodeTryAgain,
			"let the pod run on the node that has the ENI, or end the ENI's pods there: that node then detaches it",
			"the pod asks for %s, but this ENI is attached to %s, and this node is %s", id, e.Instance, self)
	case e.Attachment != "" && e.Instance == "":
		return refuse("ask for another ENI", "this ENI is attached to something that is not an instance")
	case e.AttachmentStatus == aws.Detaching:
		return aws.ENI{}, detachingError(id)
	case e.VPC != book.VPCOf(s):
		return refuse("ask for an ENI of this VPC", "this ENI is in %s, and this node is in %s", e.VPC, book.VPCOf(s))
	case e.Instance == "" && e.Status != "available":
		return aws.ENI{}, plugin.Errorf(plugin.CodeTryAgain, `wait until the status of the ENI is "available"`,
			"the pod asks for %s, but the status of this ENI is %q", id, e.Status)
	}
	for _, a := range p.Policy.Choice.Addrs {
		if !book.Carries(e, a) {
			return refuse("ask for an address of the ENI, or assign this address to the ENI",
				"this ENI does not have the address %s", a)
		}
	}
	for _, f := range p.Policy.Families {
		if f == lease.IPv4 && len(e.Addrs)+len(e.Prefixes) == 0 || f == lease.IPv6 &&
			len(e.IPv6Addrs)+len(e.IPv6Prefixes) == 0 {
			return refuse("ask for another ENI, or assign an address of this family to the ENI",
				"this ENI has no %v address", f)
		}
	}
	return e, nil
}

// tagSetsText formats sets of tags, to show them to people.
func tagSetsText(all []map[string]string) string {
	var texts []string
	for _, tags := range all {
		texts = append(texts, book.TagText(tags))
	}
	return strings.Join(texts, ", or ")
}

// withZoneCIDRs returns the ENI e with the CIDRs of its subnet. If the subnet is not in this node's zone, withZoneCIDRs
// returns an error.
func (p *Node) withZoneCIDRs(ctx context.Context, s *registry.State, e aws.ENI) (aws.ENI, error) {
	subnets, err := p.DescribeSubnets(ctx, e.VPC, s.Instance.Zone)
	if err != nil {
		return e, err
	}
	i := slices.IndexFunc(subnets, func(n aws.Subnet) bool { return n.ID == e.Subnet })
	if i < 0 {
		return e, plugin.Errorf(plugin.CodeRefused, "ask for an ENI of this zone, or let the pod run in the ENI's zone",
			"the pod asks for %s, but the subnet of this ENI, %s, is not in %s, the zone of this node", e.ID, e.Subnet,
			s.Instance.Zone)
	}
	e.CIDR, e.IPv6CIDR = subnets[i].CIDR, subnets[i].IPv6CIDR
	return e, nil
}

// recordChosen records an attached ENI with its addresses. If this node has just attached the ENI, its addresses are
// free at once. Otherwise a pod may use some of them, so recordChosen looks at the kernel.
func (p *Node) recordChosen(ctx context.Context, e aws.ENI, justAttached bool) error {
	addrs, cidrs := slices.Concat(e.Addrs, e.IPv6Addrs), slices.Concat(e.Prefixes, e.IPv6Prefixes)
	subnet := registry.ENI{CIDR: e.CIDR, CIDR6: e.IPv6CIDR}
	if err := p.StrangeNow(ctx, e.ID, subnet, addrs, cidrs); err != nil {
		return err
	}
	used := p.Used(e.MAC)
	return p.Registry.Change(ctx, func(s *registry.State) {
		book.Record(s, e, false)
		was := s.ENIs[e.ID]
		was.Pool = p.Policy.Pool // only for people: an ADD finds the ENI by the ENI's ID
		s.ENIs[e.ID] = was
		if justAttached {
			book.AddAddrs(s, e.ID, addrs, time.Time{})
			book.AddPrefixes(s, e.ID, cidrs, time.Time{})
		} else {
			known.AddAll(s, e, used)
		}
		s.ENIs[e.ID] = book.MarkOnRequest(s.ENIs[e.ID], e)
		maps.DeleteFunc(s.Intents, func(_ string, i registry.Intent) bool { return i.ENI == e.ID })
	})
}

// detachingError returns the error for an ENI that a collection, another process or an operator has begun to detach.
func detachingError(id string) error {
	return plugin.Errorf(plugin.CodeTryAgain, "wait until the ENI is detached: this node then attaches the ENI again",
		"the pod asks for %s, and this ENI is about to be detached", id)
}

// updateChosen updates an ENI of the registry from EC2's description. If no address of the ENI is free after this
// update, the error says which pods use the addresses.
func (p *Node) updateChosen(ctx context.Context, s *registry.State, e aws.ENI) error {
	if s.ENIs[e.ID].Draining {
		return detachingError(e.ID)
	}
	if err := p.recordChosen(ctx, e, false); err != nil || p.HasFree() {
		return err
	}
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	var users []string
	for _, l := range s.Leases.All() {
		if l.ENI == e.ID {
			users = append(users, book.Holder(l))
		}
	}
	if users == nil {
		return plugin.Errorf(plugin.CodeTryAgain, "wait, or look at 'cni-ipvlan-vpc-k8s-tool status'",
			"the pod asks for %s, and no address of this ENI is free. The addresses cool, or the link of the ENI is "+
				"not on the node", e.ID)
	}
	return plugin.Errorf(plugin.CodeTryAgain,
		"assign more addresses to the ENI, or wait until one of its pods has ended",
		"the pod asks for %s, and no address of this ENI is free. The addresses are used by: %s",
		e.ID, strings.Join(users, ", "))
}
