// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The functions of this file delete ENIs: for a collection, for a growth that needs the slot, and for an operator. The
// registry's data about an ENI may be old or wrong. So before each step, EC2 describes the ENI, and
// [Node.undeletableError] checks that nothing forbids the step. EC2 itself refuses to delete an attached ENI. In EC2,
// each attachment of an ENI has its own ID, and the call to detach an ENI names this ID. So an ENI that is attached to
// another instance by now stays there.

var (
	// errNotOurs means that an ENI belongs to another owner, and that this node does not change the ENI.
	errNotOurs = errors.New("this node may not delete it")
	// errBoot means that an ENI is the boot ENI. EC2 does not always refuse to detach the boot ENI, so a process must
	// not try.
	errBoot = errors.New("it is the boot ENI of this node")
	// errUsed means that a pod uses an ENI.
	errUsed = errors.New("it serves pods")
	// errAttached means that this process wanted to detach an ENI, but EC2 has not begun to detach it.
	errAttached = errors.New("it is still attached")
	// errAttaching means that a process of this node has begun to attach an ENI, but has not recorded the ENI yet.
	errAttaching = errors.New("a process of this node has begun to attach it: try again when the process has ended. " +
		"If the process was killed, run registry-gc, and try again. If \"provision\" of a network of the node is " +
		"\"assign\" or \"none\", first wait 15 minutes")
)

// Remove detaches an ENI and deletes it. It returns an error if pods of this node use the ENI, if it is the boot ENI,
// or if it belongs to another owner. If EC2 does not know the ENI, the error is aws.ErrNotFound. If Remove fails before
// it begins to detach the ENI, pods can have the addresses of the ENI again.
func (p *Node) Remove(ctx context.Context, id string) error {
	if err := errors.Join(p.ForgetRefusals(ctx), p.Learn(ctx)); err != nil {
		return err
	}
	unlock, err := p.Registry.Lock(ctx, "collect")
	if err != nil {
		return err
	}
	defer unlock()
	enis, err := p.DescribeENIs(ctx, aws.ByID(id))
	if err != nil {
		return err
	}
	if len(enis) == 0 {
		return aws.ErrNotFound
	}
	used := p.Used(enis[0].MAC)
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		if err := usedError(s, enis[0], used); err != nil {
			return err
		}
		s.Edit(id, (*registry.ENI).Drain)
		return nil
	})
	if err == nil {
		err = p.deleteENI(ctx, id, used, enis)
	}
	if err != nil && enis[0].Attachment != "" {
		err = errors.Join(err, p.undrain(context.WithoutCancel(ctx), id))
	}
	if e, ok := errors.AsType[*aws.Error](err); ok && e.Action == "DeleteNetworkInterface" {
		return fmt.Errorf("it is detached, but may still exist, so run the command again: %w", err)
	}
	return err
}

// deleteENI detaches an ENI, deletes it, and then removes it from the registry. It continues the work of an earlier
// deleteENI. If EC2 fails, the ENI stays draining, because EC2 may detach it now or soon, and the next collection
// continues. If the role has no permission to delete the ENI, the ENI is only detached, and takes no slot. The argument
// description is EC2's latest description of the ENI, or nil.
func (p *Node) deleteENI(ctx context.Context, id string, used lease.Used, description []aws.ENI) error {
	err := p.detachAndDelete(ctx, id, used, description)
	e, ok := errors.AsType[*aws.Error](err)
	now := time.Now()
	switch {
	case err == nil:
		return p.Registry.Change(ctx, func(s *registry.State) {
			for _, a := range s.ENIs[id].Addrs {
				s.Gone[a] = now
			}
			for _, b := range s.ENIs[id].Prefixes {
				s.Gone[b.CIDR.Addr()] = now
			}
			s.Drop(id)
			s.Instance.FullUntil, s.Instance.FullWith = time.Time{}, 0 // the slot of the ENI is free
		})
	case errors.Is(err, errNoManage):
		return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) {
			s.Edit(id, (*registry.ENI).Disown)
		}))
	case errors.Is(err, errNotOurs):
		return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) { s.Drop(id) }))
	case isDeleteDenied(err): // the ENI is already detached
		return errors.Join(err, p.Registry.Change(ctx, func(s *registry.State) {
			s.Edit(id, (*registry.ENI).Detach)
			s.Instance.FullUntil, s.Instance.FullWith = time.Time{}, 0
		}))
	case errors.Is(err, errUsed), errors.Is(err, errBoot), ok && e.Action == "DetachNetworkInterface" &&
		errors.Is(err, aws.ErrDenied) && aws.Undone(err):
		return errors.Join(err, p.undrain(ctx, id))
	}
	return err
}

// DeleteDraining frees slots for a new ENI: it deletes the ENIs that a collection has begun to delete. It returns the
// state afterwards. The collection may have been killed. If it still runs, and lets such an ENI serve pods again, the
// ENI stays.
func (p *Node) DeleteDraining(ctx context.Context, s *registry.State) (*registry.State, error) {
	if !p.MakesENIs() {
		return p.Registry.View()
	}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		if e := s.ENIs[id]; !e.Draining || e.OnRequest {
			continue
		}
		err := p.deleteENI(ctx, id, p.Used(), nil)
		if err != nil && !growthGoesOn(id, err) {
			return nil, fmt.Errorf("delete %s to make room for another ENI: %w", id, err)
		}
	}
	return p.Registry.View()
}

// DeleteUnwanted frees a slot for a new ENI: it deletes one empty ENI that gets no new pods. An operator has retired
// this ENI, or the configuration no longer has its pool. Other empty ENIs stay, so that two pools do not take a slot
// from each other again and again. DeleteUnwanted returns the state afterwards.
func (p *Node) DeleteUnwanted(ctx context.Context, s *registry.State) (*registry.State, error) {
	if !p.MakesENIs() {
		return s, nil
	}
	const least = time.Minute // the default of reuseIPWait: the registry does not have the value of a removed pool
	c := &Collecting{Collection: Collection{FreeAfter: max(least, p.Policy.ReuseWait), Max: -1}}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		if e := s.ENIs[id]; !e.Retired && !e.PoolGone {
			continue
		}
		c.Used = p.Used()
		deleted, err := p.deleteIfEmpty(ctx, c, id)
		if err != nil && !growthGoesOn(id, err) {
			return nil, fmt.Errorf("delete %s to make room for another ENI: %w", id, err)
		}
		if deleted || isDeleteDenied(err) { // the ENI is at least detached: its slot is free
			break
		}
	}
	return p.Registry.View()
}

// growthGoesOn reports whether a growth can continue after err, the error of an attempt to delete the ENI with this id.
// If the role lacks a permission, growthGoesOn logs err.
func growthGoesOn(id string, err error) bool {
	if aws.NotAllowed(err) {
		slog.Warn("this node could not delete an unused ENI to make room for another ENI, because the role lacks a "+
			"permission", "eni", id, "error", err)
		return true
	}
	return errors.Is(err, errNotOurs) || errors.Is(err, errUsed) || errors.Is(err, errUndrained) ||
		errors.Is(err, errAttaching) || call.GoesOn(err, true)
}

// isForgotten reports whether the registry no longer has an ENI.
func (p *Node) isForgotten(id string) bool {
	s, err := p.Registry.View()
	if err != nil {
		return false
	}
	_, known := s.ENIs[id]
	return !known
}

// detachAndDelete detaches an ENI from this instance, waits until EC2 has detached it, and deletes it. It returns no
// error if EC2 no longer has the ENI. If EC2 has shown the ENI in the last seconds, the answer "not found" proves
// nothing, and detachAndDelete asks again (EC2 API reference, "Eventual consistency").
func (p *Node) detachAndDelete(ctx context.Context, id string, used lease.Used, description []aws.ENI) error {
	const every = time.Second
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	_, ours := s.ENIs[id]
	seenAt := s.ENIs[id].Grown // when EC2 has last shown the ENI
	var held time.Time         // when EC2 first refused to delete the ENI
	for detached := false; ; description = nil {
		was, enis := detached, description
		if enis == nil {
			enis, err = p.DescribeENIs(ctx, aws.ByID(id))
		}
		missing := errors.Is(err, aws.ErrNotFound) || err == nil && len(enis) == 0
		switch {
		case missing && (time.Since(seenAt) > known.Settled || ours && p.isForgotten(id)):
			return nil // EC2 no longer has the ENI, or another process has deleted it
		case missing:
			err = nil
		case err == nil:
			seenAt = time.Now()
			detached, err = p.stepToDelete(ctx, enis[0], used, detached)
		}
		if isStillAttached(err) {
			if held.IsZero() {
				held = time.Now()
			}
			if time.Since(held) < lagOfDetach {
				err = nil
			}
		}
		if errors.Is(err, errDeleted) {
			return nil
		}
		if err == nil && detached == was { // after the detach call, do not wait, because EC2 is often ready at once
			err = p.awaitEC2(ctx, every, "wait for "+id+" to be detached and deleted")
		}
		if err != nil {
			return err
		}
	}
}

// MostAwait is the longest time that a collection waits for EC2 to detach ENIs, for all ENIs together. EC2 may need
// hours for one ENI.
const MostAwait = time.Minute

// awaitEC2 waits for the duration d, while EC2 detaches or deletes an ENI. In a collection, all waits together take at
// most MostAwait.
func (p *Node) awaitEC2(ctx context.Context, d time.Duration, reason string) error {
	if until := p.Mode.Until; !until.IsZero() && time.Now().After(until) {
		return fmt.Errorf("%s: EC2 has not finished after %v: the next collection continues", reason, MostAwait)
	}
	return call.Sleep(ctx, d, reason)
}

// lagOfDetach is how long EC2 may refuse to delete an ENI although it shows the ENI as detached. Other programs wait
// for 2 to 5 seconds (aws/amazon-vpc-cni-k8s#608; lyft/cni-ipvlan-vpc-k8s, aws/interface.go).
const lagOfDetach = 10 * time.Second

// isStillAttached reports whether EC2 has refused to delete an ENI because the ENI is still attached.
func isStillAttached(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && e.Action == "DeleteNetworkInterface" && errors.Is(e, aws.ErrInUse) && aws.Undone(err)
}

// isDeleteDenied reports whether EC2 has not deleted an ENI because the role has no permission to delete it.
func isDeleteDenied(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && e.Action == "DeleteNetworkInterface" && aws.NotAllowed(e) && aws.Undone(err)
}

// errDeleted means that an ENI is deleted.
var errDeleted = errors.New("it is deleted")

// stepToDelete makes the next step to delete an ENI that EC2 has just described: it detaches the ENI, or deletes it.
// While EC2 detaches the ENI, stepToDelete does nothing. It returns true if this process has asked EC2 to detach the
// ENI, now or earlier.
func (p *Node) stepToDelete(ctx context.Context, e aws.ENI, used lease.Used, detached bool) (_ bool, err error) {
	if err := p.undeletableError(e, used, detached); err != nil {
		return detached, err
	}
	switch {
	case e.Status == "available":
		err = cmp.Or(p.DeleteNow(ctx, e.ID), errDeleted)
	case !detached:
		if err = p.detachENI(ctx, e); detachNotBegun(err) {
			err = fmt.Errorf("%w: %w", errAttached, err)
		}
		detached = true
	}
	if errors.Is(err, aws.ErrNotFound) {
		return detached, nil
	}
	return detached, err
}

// errNoManage is an errNotOurs whose reason is a tag of the ENI that forbids changes.
var errNoManage = fmt.Errorf("%w: it has the tag %s=true", errNotOurs, book.TagNoManage)

// undeletableError returns why this node must not detach and delete an ENI that EC2 has just described, or nil. An ENI
// that was created for another instance must stay, because it may be attached there now or soon. If detached is true,
// this node has just detached the ENI, and may delete it, because no other node would.
func (p *Node) undeletableError(e aws.ENI, used lease.Used, detached bool) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	self, made := s.Instance.ID, book.MadeFor(e)
	switch {
	case self == "":
		return fmt.Errorf("it is not known whether %s belongs to this instance: the metadata service has not "+
			"reported the instance ID", e.ID)
	case e.Instance != "" && e.Instance != self:
		return fmt.Errorf("%w: it is attached to %s, and this node is %s", errNotOurs, e.Instance, self)
	case e.Instance == "" && e.Attachment != "":
		return fmt.Errorf("%w: it is attached, but not to an instance", errNotOurs)
	case e.Instance == "" && made != "" && made != self && !detached:
		return fmt.Errorf(
			"%w: it was made for %s, and this node is %s. cni-tool eni-gc deletes the ENI when instance %[2]s is gone",
			errNotOurs, made, self)
	case book.Foreign(e):
		return errNoManage
	case e.Status == "available" && book.Begun(s, e.ID) && !book.Provisions(s, e):
		return errAttaching // a growth would not find the ENI, and its pods would fail
	case !book.ForPods(e) && (s.ENIs[e.ID].OnRequest || p.Policy.Requestable(e.Tags)):
		return fmt.Errorf("%w: an operator has created it, for pods that ask for it", errNotOurs)
	}
	return usedError(s, e, used)
}

// usedError returns an error if the ENI is the boot ENI, or if pods have the ENI's link or its addresses. The error
// lists these addresses. usedError looks at EC2's description, the registry, and the kernel of this node. If a
// namespace could not be read, the ENI counts as used.
func usedError(s *registry.State, e aws.ENI, used lease.Used) error {
	if e.Instance == s.Instance.ID && book.IsBoot(s.ENIs[e.ID], e) {
		return errBoot
	}
	known := s.ENIs[e.ID]
	has := func(a netip.Addr) bool { return book.Carries(e, a) || known.Has(a) }
	var why []string
	for a, l := range s.Leases.All() {
		if has(a) || l.ENI == e.ID {
			why = append(why, fmt.Sprintf("%s is in use: %s", a, book.Holder(l)))
		}
	}
	for at, where := range used.By {
		// A rebuilt registry may lack a new prefix, and EC2's description may be older than the prefix.
		id, _ := s.ENIOf(at.Addr)
		maybe := id == "" && s.Rebuilt.Unconfirmed && (known.CIDR.Contains(at.Addr) || known.CIDR6.Contains(at.Addr))
		if (at.MAC == e.MAC || at.MAC == "") && (has(at.Addr) || maybe) && !s.Leases.Has(at.Addr) {
			why = append(why, fmt.Sprintf("%s is in use: %s", at.Addr, where))
		}
	}
	if used.InPod(e.MAC) {
		why = append(why, "its link is in the namespace of a pod")
	}
	slices.Sort(why)
	switch {
	case len(why) > 0:
		return fmt.Errorf("%w: %s", errUsed, strings.Join(why, "; "))
	case used.Partial:
		return fmt.Errorf("%w, or may serve pods, because not all network namespaces of this node can be read", errUsed)
	}
	return nil
}
