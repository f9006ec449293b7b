// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// This file is about instances with several network cards, such as p4d, p5 and c6in.32xlarge. Each card has its own
// device indices from 0 on, its own limit of ENIs and its own bandwidth (EC2 user guide, "Network cards").
//
// An ENI serves pods if its device index on its card is not lower than interfaceIndex. The boot ENI is at index 0 of
// card 0, in rare cases at another index. This node attaches ENIs only at indices above 0, on each card. If the card is
// not card 0, an ENI at index 0 serves no pods. The node avoids index 0 for two reasons. ENIs that are only for EFA are
// at index 0 (user guide, "Maximize network bandwidth on Amazon EC2 instances with multiple network cards"). And
// metadata reports index 0 for any ENI whose index it does not know yet.

// A Slot is where an ENI can be attached: a device index of a network card.
type Slot struct{ Card, Index int }

// slots are the slots of an instance.
type slots struct {
	cards    []int         // how many ENIs each card can have
	minIndex int           // the lowest device index that is for pods
	taken    map[Slot]bool // the slots that have an ENI
	inOrder  bool          // the lowest card first
}

// slotsOf returns the slots of the instance. The argument described has EC2's descriptions of ENIs. The registry and
// the descriptions show which slots are taken. If the registry and EC2's description of an ENI differ, the description
// counts.
func slotsOf(s *registry.State, minIndex int, described []aws.ENI) *slots {
	all := &slots{cards: slices.Clone(s.Instance.Cards), minIndex: max(minIndex, 1), taken: map[Slot]bool{{0, 0}: true}}
	if len(all.cards) == 0 {
		all.cards = []int{s.Instance.ENIs}
	}
	shown := map[string]bool{}
	for _, e := range described {
		all.taken[Slot{e.Card, e.Index}], shown[e.ID] = true, true
	}
	for id, e := range s.ENIs {
		if !shown[id] && !e.Detached {
			all.taken[Slot{e.Card, e.Index}] = true
		}
	}
	return all
}

// nextFree returns the slot for the next ENI: the lowest free index on the card with the fewest ENIs. The ENIs of a
// card share its bandwidth.
//
// An index must be lower than the number of ENIs that the card can have (aws/aws-k8s-tester#531 quotes EC2). With a
// single card, EC2 also accepts higher indices.
func (a *slots) nextFree() (best Slot, found bool) {
	load := make([]int, len(a.cards))
	for at := range a.taken {
		if at.Card < len(load) {
			load[at.Card]++
		}
	}
	for card, most := range a.cards {
		at := Slot{card, a.minIndex}
		for a.taken[at] {
			at.Index++
		}
		fits := load[card] < most && (at.Index < most || len(a.cards) == 1)
		if fits && (!found || !a.inOrder && load[card] < load[best.Card]) {
			best, found = at, true
		}
	}
	return best, found
}

// recordRefusal records EC2's refusal of a slot, and reports whether the caller should try another slot. If the card
// may be the reason, nextFree returns no more slots of this card. It then also prefers the lowest card, because each
// instance type accepts ENIs like ours on card 0.
func (a *slots) recordRefusal(at Slot, err error) (again bool) {
	e, _ := errors.AsType[*aws.Error](err)
	switch {
	case errors.Is(err, aws.ErrIndexTaken):
		a.taken[at] = true
		return true
	case errors.Is(err, aws.ErrNotRunning) || e == nil:
		return false
	case errors.Is(err, aws.ErrInstanceFull), errors.Is(err, aws.ErrCardFull),
		strings.HasPrefix(e.Code, "InvalidParameter"), strings.HasPrefix(e.Code, "Unsupported"):
		a.cards[at.Card], a.inOrder = 0, true
		return true
	}
	return false
}

// noSlotError returns the error of an instance without a free slot. If this process has tried to attach the ENI, the
// argument err is EC2's last refusal.
func noSlotError(err error) error {
	switch {
	case err == nil:
		return errSlots
	case errors.Is(err, aws.ErrIndexTaken):
		return fmt.Errorf("%w: EC2 has refused each device index of this instance: %w", aws.ErrInstanceFull, err)
	}
	return err
}
