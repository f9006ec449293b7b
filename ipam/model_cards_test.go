// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// In some histories, the instance has several network cards, as in card_test.go. A card may have only the slot at index
// 0, where no process attaches an ENI for pods. The instance may be launched with ENIs that are only for EFA, on the
// first cards. No process changes these ENIs.

// giveCards gives the instance type several cards.
func (m *model) giveCards() {
	m.limits.Cards = pick(m.rng, []int{2, 2}, []int{2, 3}, []int{3, 2}, []int{1, 3}, []int{3, 1}, []int{2, 2, 2})
	m.limits.Name, m.limits.ENIs = "model.cards", 0
	for _, n := range m.limits.Cards {
		m.limits.ENIs += n
	}
}

// chooseCards chooses the slot of the boot ENI, and whether there are ENIs that are only for EFA.
func (m *model) chooseCards(run *ec2sim.RunInstance) {
	switch {
	case m.limits.Cards[0] <= run.BootIndex:
		run.BootIndex = 0
	case run.BootIndex == 0 && m.limits.Cards[0] > 1 && m.chance(30):
		run.EFAOnly = 1 + m.rng.IntN(len(m.limits.Cards))
	}
	if run.EFAOnly == 0 && m.limits.Cards[1] > 1 && m.chance(10) {
		run.BootCard, run.BootIndex = 1, 1
	}
}

// spareEFA records that no process may change the ENIs that are only for EFA.
func (m *model) spareEFA() {
	for _, e := range m.attached() {
		if e.EFAOnly {
			m.theirs[e.ID] = e
		}
	}
}

// cards returns the number of slots of each card.
func (m *model) cards() []int {
	if m.limits.Cards == nil {
		return []int{m.limits.ENIs}
	}
	return m.limits.Cards
}

// A slot is a device index of a network card.
type slot struct{ card, index int }

// freeSlot returns the first free slot of an instance for an ENI with addresses.
func (m *model) freeSlot(of *ec2sim.Instance) (card, index int, found bool) {
	taken := map[slot]bool{}
	for _, e := range of.ENIs() {
		taken[slot{e.Card, e.Index}] = true
	}
	for card, most := range m.cards() {
		for index := 1; index < most; index++ {
			if !taken[slot{card, index}] {
				return card, index, true
			}
		}
	}
	return 0, 0, false
}

// lastSlot returns the last free slot of the node for an ENI with addresses.
func (m *model) lastSlot() (card, index int) {
	taken := map[slot]bool{}
	for _, e := range m.ENIs() {
		taken[slot{e.Card, e.Index}] = true
	}
	for i, most := range m.cards() {
		for at := 1; at < most; at++ {
			if !taken[slot{i, at}] {
				card, index = i, at
			}
		}
	}
	return card, index
}

// slots counts the free slots of the node for ENIs with addresses. With one card, EC2 also accepts indices above the
// number of ENIs, so only the number counts.
func (m *model) slots() (n int) {
	all := m.attached()
	if m.limits.Cards == nil {
		n = m.limits.ENIs - len(all)
		if m.ENIs()[0].Index > 0 {
			n-- // no ENI is ever attached at index 0
		}
		return n
	}
	for _, most := range m.limits.Cards {
		n += most - 1
	}
	for _, e := range all {
		if e.Index > 0 {
			n--
		}
	}
	return n
}

// verifySlots checks that no ENI for pods is at index 0.
func (m *model) verifySlots() {
	for _, e := range m.attached() {
		if e.Index == 0 && e.Tags[book.TagManaged] == "true" {
			m.wrong("%s is ours, and at %d.0", e.ID, e.Card)
		}
	}
}

// verifyKnownSlots runs collections while pods run. It then checks that the registry has each ENI in the same slot as
// EC2.
func (m *model) verifyKnownSlots() {
	if m.limits.Cards == nil {
		return
	}
	for range 2 { // the first collection may find errors in the registry, and report them
		time.Sleep(10 * time.Minute)
		_, _ = m.collectNow(less.Collection{FreeAfter: time.Hour, Max: -1}, fate{})
		m.verify()
	}
	s, err := m.view()
	if err != nil {
		m.wrong("%v", err)
		return
	}
	for _, e := range m.attached() {
		if known, is := s.ENIs[e.ID]; is && (known.Card != e.Card || known.Index != e.Index) {
			m.wrong("%s is at %d.%d, and in the registry at %d.%d", e.ID, e.Card, e.Index, known.Card, known.Index)
		}
	}
}
