// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package less

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// The node is about to detach a draining ENI, which has a mark in the registry. No pod gets an address of the ENI.
// Before a process calls DetachNetworkInterface, it writes a note into the registry (Detaching of registry.ENI). The
// process removes its note only if EC2 has refused the call. No process removes the mark while there is a note, and no
// process detaches an ENI without the mark. So no lock is needed, and a process may be killed at any time.
//
// If the registry is lost, EC2 still shows which ENIs it is detaching: see book.Leaving.
//
// A killed process leaves its note. If EC2 has had time to settle, and still shows the ENI as attached, EC2 has not
// begun to detach the ENI (EC2 API reference, "Eventual consistency"). In this case, a later process may remove the
// note and the mark.

// errUndrained means that another process has removed the mark of an ENI meanwhile.
var errUndrained = errors.New("it serves pods again")

// A markedENI is the result of markDraining for one ENI.
type markedENI struct {
	seen      []aws.ENI // EC2's description of the ENI, right before the mark
	wasMarked bool      // the ENI had the mark before, so an earlier process may have begun to detach it
	isMarked  bool      // the ENI has the mark now
}

// markDraining calls setMark to mark an ENI as draining, if mayMark returns true. After the mark, no process leases an
// address of the ENI. If EC2 does not describe the ENI, for example because it throttles, the ENI gets no mark.
func (p *Node) markDraining(
	ctx context.Context, id string, mayMark func(*registry.State) bool, setMark func(*registry.ENI),
) (m markedENI, err error) {
	s, err := p.Registry.View()
	if err != nil || !mayMark(s) {
		return m, err
	}
	noted := s.ENIs[id].Detaching
	old := !noted.IsZero() && !maybeBegun(s.ENIs[id])
	if m.seen, err = p.DescribeENIs(ctx, aws.ByID(id)); err != nil && !errors.Is(err, aws.ErrNotFound) {
		return m, err
	}
	stays := old && isAttachedTo(s.Instance.ID, m.seen)
	err = p.Registry.Change(ctx, func(s *registry.State) {
		if m.isMarked = mayMark(s); m.isMarked {
			e := s.ENIs[id]
			if stays && e.Detaching.Equal(noted) {
				e.Undrain()
			}
			m.wasMarked = e.Draining
			setMark(&e)
			s.ENIs[id] = e
		}
	})
	return m, err
}

// maybeBegun reports whether a process may have begun to detach an ENI, although EC2 shows the ENI as attached.
func maybeBegun(e registry.ENI) bool { return time.Since(e.Detaching) <= known.LagOfEC2 }

// isAttachedTo reports whether EC2 shows an ENI as attached to an instance.
func isAttachedTo(instance string, description []aws.ENI) bool {
	return len(description) > 0 && description[0].Instance == instance &&
		description[0].AttachmentStatus == aws.Attached
}

// endDraining removes the marks of the ENIs that EC2 shows as attached to this instance, if the node must not delete
// ENIs. No collection would delete these ENIs, so pods can have their addresses again. A detached ENI keeps its mark.
// When a detached ENI is deleted, or attached to another instance, it leaves the registry. If the role has no
// permission to describe ENIs, the marks stay, and the collection goes on.
func (p *Node) endDraining(ctx context.Context) (failed error) {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(s.ENIs)) {
		e := s.ENIs[id]
		if !e.Draining || maybeBegun(e) {
			continue
		}
		seen, err := p.DescribeENIs(ctx, aws.ByID(id))
		switch {
		case errors.Is(err, aws.ErrNotFound), err == nil && len(seen) == 0:
			err = p.Missing(ctx, id)
		case aws.NotAllowed(err):
			slog.Warn("an ENI serves no pods, because an earlier process was about to delete the ENI. The role does "+
				"not allow this node to ask EC2 whether the ENI is attached. Allow ec2:DescribeNetworkInterfaces",
				"eni", id, "error", err)
			err = nil
		case err != nil:
			err = fmt.Errorf("ask EC2 whether %s, which no process deletes any more, is attached: %w", id, err)
		case isAttachedTo(s.Instance.ID, seen):
			err = p.Registry.Change(ctx, func(s *registry.State) {
				if s.ENIs[id].Detaching.Equal(e.Detaching) {
					s.Edit(id, (*registry.ENI).Undrain)
				}
			})
		case seen[0].Instance != "" && seen[0].Instance != s.Instance.ID:
			err = p.Forget(ctx, id)
		}
		failed = errors.Join(failed, err)
		if aws.Stops(err) {
			break
		}
	}
	return failed
}

// undrain removes the mark from an ENI, unless a process may have begun to detach the ENI.
func (p *Node) undrain(ctx context.Context, id string) error {
	return p.Registry.Change(ctx, func(s *registry.State) {
		if s.ENIs[id].Detaching.IsZero() {
			s.Edit(id, (*registry.ENI).Undrain)
		}
	})
}

// detachENI waits for its turn (see InTurn), and then begins to detach an ENI.
func (p *Node) detachENI(ctx context.Context, e aws.ENI) error {
	if err := p.Registry.Mark(known.ReleasedMark); err != nil {
		return err
	}
	return p.InTurn(ctx, "DetachNetworkInterface", func(ctx context.Context) error {
		removeNote, err := p.noteDetach(ctx, e.ID)
		if err != nil {
			return err
		}
		if err = p.Cloud.DetachENI(ctx, e.Attachment); detachNotBegun(err) {
			err = errors.Join(err, p.Registry.Change(context.WithoutCancel(ctx), removeNote))
		}
		return err
	})
}

// noteDetach writes the note that this process is about to detach an ENI. The function removeNote removes this note,
// and restores an earlier note. The writer of the earlier note may have begun to detach the ENI.
func (p *Node) noteDetach(ctx context.Context, id string) (removeNote func(*registry.State), err error) {
	var before, noted time.Time
	err = p.Registry.Update(ctx, func(s *registry.State) error {
		e, known := s.ENIs[id]
		switch {
		case book.Begun(s, id):
			return errAttaching // a growth may record the ENI soon, and pods then get addresses of the ENI
		case !known:
			return nil // nothing to note: only an operator's command detaches an ENI that is not in the registry
		case !e.Draining:
			return errUndrained
		}
		if before, noted = e.Detaching, time.Now().Round(0); !noted.After(before) {
			noted = before.Add(1) // the clock was set back, but this note must differ from the earlier note
		}
		e.Detaching = noted
		s.ENIs[id] = e
		return nil
	})
	return func(s *registry.State) {
		if e, known := s.ENIs[id]; known && e.Detaching.Equal(noted) {
			e.Detaching = before
			s.ENIs[id] = e
		}
	}, err
}

// detachNotBegun reports whether detachENI has failed with err before EC2 began to detach the ENI. If EC2 does not find
// the attachment, or the ENI is in a transition, an earlier call may have begun to detach the ENI.
func detachNotBegun(err error) bool {
	return err != nil && !aws.MaybeDone(err) && !errors.Is(err, aws.ErrNotFound) && !inTransition(err)
}

// inTransition reports whether EC2 has refused to detach an ENI because it is still detaching or attaching the ENI.
func inTransition(err error) bool {
	e, ok := errors.AsType[*aws.Error](err)
	return ok && e.Code == "IncorrectState"
}

// staysAttached reports whether the ENI certainly stays attached after detachENI has failed with err. If the ENI had
// the mark before, an earlier process may have begun to detach it. In this case, staysAttached returns true only if the
// role has no permission to detach ENIs. Without this permission, no process of this node can detach the ENI.
func (m markedENI) staysAttached(err error) bool {
	return detachNotBegun(err) && (!m.wasMarked || errors.Is(err, aws.ErrDenied))
}
