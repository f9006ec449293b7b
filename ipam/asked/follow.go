// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package asked

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about a chosen address that is on an ENI of another node, the old node. A pod of the old node may still
// use the address, even if the old node has no network. Only two events prove that no pod uses the address. Either the
// old node has looked at its kernel and released the address, or EC2 says that the instance of the old node has ended.
// In the second case, this node unassigns the address from the ENI of the ended instance.
//
// An ENI that is attached to no instance may serve pods soon. Perhaps a node is about to attach it, and has leased its
// addresses. So this node takes an address from such an ENI only if the instance for which the ENI was made has ended.

const hintHeld = "wait until the pod that has the address has ended: the node of that pod then releases the address. " +
	"If a reboot of that node has ended the pod, run cni-tool deallocate on that node. If that node is lost, " +
	"terminate its instance, and allow this node to take the address (\"takeover\" in \"requests\")"

// followAddr unassigns a chosen address from the ENI of another node. Before that, followAddr proves that no pod has
// the address. If followAddr cannot prove this, it returns an error that says why the pod cannot have the address now.
func (p *Node) followAddr(ctx context.Context, e aws.ENI, a netip.Addr) error {
	if err := p.fixedAddrError(e, a); err != nil {
		return err
	}
	if p.Policy.Choice.Takeover {
		if taken, err := p.takeOverAddr(ctx, e, a); taken || err != nil {
			return err
		}
	}
	return plugin.Errorf(plugin.CodeHeld, hintHeld,
		"the pod asks for the address %s, which %s has. This ENI is %s, and its description is %.80q",
		a, e.ID, placeText(e),
		e.Description)
}

// fixedAddrError returns an error if the address cannot leave the ENI e, or if e does not belong to this cluster. If
// the ENI belongs to others, no node of this cluster releases the ENI's addresses.
func (p *Node) fixedAddrError(e aws.ENI, a netip.Addr) error {
	const another = "ask for another address; "
	primary := len(e.Addrs) > 0 && a == e.Addrs[0]
	switch alone := slices.Contains(e.Addrs, a) || slices.Contains(e.IPv6Addrs, a); {
	case !alone:
		return takenError(e, a, " in a prefix", another+"EC2 moves no single address of a prefix. Reserve the "+
			"addresses that pods choose: a subnet CIDR reservation of the type explicit keeps them out of prefixes")
	case primary:
		return takenError(e, a, " as its primary address", another+"EC2 never moves the primary address of an ENI")
	case !p.isOfCluster(e):
		return takenError(e, a, "", another+"this node never takes an address from an ENI that does not belong to "+
			"this node's cluster")
	}
	return nil
}

// isOfCluster reports whether an ENI was made for pods of this cluster. Such an ENI has the marks of this suite (see
// book.ForPods), all tags of eniTags, and no tag that forbids changes.
func (p *Node) isOfCluster(e aws.ENI) bool {
	for k, v := range p.Policy.Tags {
		if has, ok := e.Tags[k]; !ok || has != v {
			return false
		}
	}
	return book.ForPods(e) && !book.Foreign(e)
}

// takenError returns the error for an address that another ENI has. The argument relation is a text such as " in a
// prefix": it comes after the word "has".
func takenError(e aws.ENI, a netip.Addr, relation, hint string) error {
	return plugin.Errorf(plugin.CodeRefused, hint,
		"the pod asks for the address %s, which %s has%s. This ENI is %s, and its description is %.80q", a, e.ID,
		relation, placeText(e), e.Description)
}

// placeText says where an ENI is attached.
func placeText(e aws.ENI) string {
	switch {
	case e.Instance != "":
		return "attached to " + e.Instance
	case e.Attachment != "":
		return "attached"
	}
	return "attached to nothing"
}

// maxAnswerAge is how long this node relies on EC2's answer that an instance has ended. A stopped instance may start
// again. But its boot takes longer than maxAnswerAge and the lag of EC2's answers together. After the boot, the first
// ADD of the instance asks EC2 which addresses the instance has. By then, EC2 no longer shows the address that this
// node has taken.
const maxAnswerAge = 5 * time.Second

// takeOverAddr unassigns an address from an ENI whose instance has ended. If the instance may still run, takeOverAddr
// leaves the address on the ENI, and returns false.
func (p *Node) takeOverAddr(ctx context.Context, e aws.ENI, a netip.Addr) (taken bool, _ error) {
	instance := cmp.Or(e.Instance, book.MadeFor(e))
	if instance == "" || e.Attachment != "" && e.Instance == "" {
		return false, nil // EC2 does not say which instance may use the ENI
	}
	action := book.UnassignActionOf(a)
	if err := p.AwaitTurn(ctx, action); err != nil { // wait here, because StateOf's answer must not become old
		return false, err
	}
	asked, up := time.Now(), registry.Uptime()
	state, err := p.StateOf(ctx, instance)
	// An empty state.Name means that EC2 does not show the instance: the instance has ended long ago, or is new. If the
	// ENI is attached to the instance, the instance is perhaps new, and the ENI keeps the address.
	if err != nil || !state.Ended() || state.Name == "" && e.Instance != "" {
		return false, err
	}
	ctx, cancel := context.WithDeadline(ctx, asked.Add(maxAnswerAge))
	defer cancel()
	do := p.Cloud.Unassign
	if a.Is6() {
		do = func(ctx context.Context, eni string, addrs ...netip.Addr) error {
			return p.Cloud.UnassignIPv6(ctx, eni, addrs, nil)
		}
	}
	err = p.InTurn(ctx, action, func(ctx context.Context) error {
		// the deadline of ctx does not count the time for which this machine was suspended
		if registry.Uptime()-up > maxAnswerAge {
			return context.DeadlineExceeded
		}
		return do(ctx, e.ID, a)
	})
	if call.IsPartial(err) || errors.Is(err, aws.ErrNotFound) {
		// Another node has unassigned the address before this call, or the ENI is deleted.
		return true, nil
	}
	if err != nil {
		return false, err
	}
	slog.Warn("this node has taken an address from the ENI of an ended instance, because a pod asks for the address",
		"addr", a, "eni", e.ID, "instance", instance, "state", cmp.Or(state.Name, "unknown to EC2"))
	return true, nil
}
