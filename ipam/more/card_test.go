// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestSlots checks the order in which ENIs take their slots.
func TestSlots(t *testing.T) {
	for _, test := range []struct {
		name  string
		cards []int // nil: one card of 4
		least int
		taken []Slot // beside the slot of the boot ENI
		want  string // card.index ...
	}{
		{"one card", nil, 1, nil, "0.1 0.2 0.3"},
		{"interfaceIndex 0", nil, 0, nil, "0.1 0.2 0.3"},
		{"interfaceIndex beyond the number of ENIs", nil, 9, nil, "0.9 0.10 0.11"},
		{"a gap", nil, 1, []Slot{{0, 2}}, "0.1 0.3"},
		{"two cards", []int{3, 3}, 1, nil, "1.1 0.1 1.2 0.2"},
		{"interfaceIndex 2", []int{3, 3}, 2, nil, "1.2 0.2"},
		{"p5", slices.Repeat([]int{2}, 4), 1, nil, "1.1 2.1 3.1 0.1"},
		{"p5 with EFA alone on all cards", slices.Repeat([]int{2}, 4), 1, []Slot{{0, 1}, {1, 0}, {2, 0}, {3, 0}},
			"1.1 2.1 3.1"},
		{"p4d with EFA at index 1", slices.Repeat([]int{4}, 3), 1, []Slot{{1, 1}, {2, 1}},
			"0.1 1.2 2.2 0.2 1.3 2.3 0.3"},
		{"a card for EFA alone", []int{3, 0, 2}, 1, []Slot{{1, 0}}, "2.1 0.1 0.2"},
		{"a card that the table lacks", []int{2, 2}, 1, []Slot{{7, 1}}, "1.1 0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &registry.State{Instance: registry.Instance{ENIs: 4, Cards: test.cards},
				ENIs: map[string]registry.ENI{"eni-boot": {}}}
			for i, at := range test.taken {
				s.ENIs[fmt.Sprint("eni-", i)] = registry.ENI{Card: at.Card, Index: at.Index}
			}
			all, got := slotsOf(s, test.least, nil), []string(nil)
			for {
				at, found := all.nextFree()
				if !found {
					break
				}
				got = append(got, fmt.Sprintf("%d.%d", at.Card, at.Index))
				all.taken[at] = true
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

// TestSlotsSeen: the slot of an ENI comes from EC2's answer if the answer has this ENI, and otherwise from the
// registry.
func TestSlotsSeen(t *testing.T) {
	s := &registry.State{Instance: registry.Instance{ENIs: 6, Cards: []int{3, 3}}, ENIs: map[string]registry.ENI{
		"eni-late": {Index: 1}, // metadata did not show the card yet
		"eni-new":  {Index: 2},
	}}
	got := slotsOf(s, 1, []aws.ENI{{ID: "eni-boot"}, {ID: "eni-late", Card: 1, Index: 1},
		{ID: "eni-foreign", Card: 1, Index: 2}})
	for at, want := range map[Slot]bool{{0, 0}: true, {0, 1}: false, {0, 2}: true, {1, 1}: true, {1, 2}: true} {
		if got.taken[at] != want {
			t.Errorf("%v taken: %v", at, got.taken[at])
		}
	}
}
