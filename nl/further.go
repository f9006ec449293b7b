// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"slices"
)

// The first attachment of a pod has the pod's veth pair, its default route, and its first NIC. Other attachments to
// networks of ours are further attachments. They have only NICs. Each of these NICs has a rule and a routing table of
// its own. So the answers to packets that arrive by a NIC leave by the same NIC.
//
// The groups of the links show which attachment is the first. A link has its group from its creation on, so the group
// is right even if an ADD was killed. If other attachments begin or end later, a first attachment stays the first, and
// a further attachment stays further. The reason is that Further checks the attachment's own links before other links.
// The first attachment may end before the further attachments. Then the pod has no pair until an attachment begins that
// has no link yet.

// furtherGroup is the first byte of the groups of further attachments. OwnGroup is the first byte of the groups of
// first attachments. In both groups, the other three bytes are the attachment's number.
const furtherGroup, sameAttachment = OwnGroup + 1, 1<<24 - 1

// FurtherGroup returns the group of the links of a further attachment. own is the attachment's [PodGroup].
func FurtherGroup(own uint32) uint32 { return furtherGroup<<24 | own&sameAttachment }

// Further reports whether an attachment is a further attachment of its pod. links are all links of the pod, and own is
// the attachment's [PodGroup].
func Further(links []Link, own uint32) bool {
	has := func(group uint32) bool {
		return slices.ContainsFunc(links, func(l Link) bool { return Attachment(l.Group) == group })
	}
	return has(FurtherGroup(own)) || !has(own) && OtherFirst(links, own)
}

// OtherFirst reports whether one of the links belongs to a first attachment that is not own. own is the [PodGroup] of
// an attachment.
func OtherFirst(links []Link, own uint32) bool {
	return slices.ContainsFunc(links, func(l Link) bool {
		g := Attachment(l.Group)
		return g>>24 == OwnGroup && g != own
	})
}

// A pod's network card (see [MovedLink]) is in another group than the other links of its attachment. There are two
// reasons. The kernel deletes no link of a group if the group has a card. And DelGroup must not touch the card, because
// a card goes back to the node.
const cardGroups = furtherGroup - OwnGroup + 1

// CardGroup returns the group of an attachment's cards. group is the group of the attachment's other links.
func CardGroup(group uint32) uint32 { return group + cardGroups<<24 }

// IsCard reports whether a group is one that CardGroup returns for groups of ours.
func IsCard(group uint32) bool {
	return group>>24 == OwnGroup+cardGroups || group>>24 == furtherGroup+cardGroups
}

// Attachment returns the group of those links of an attachment that are not cards. group is the group of any link of
// the attachment.
func Attachment(group uint32) uint32 {
	if IsCard(group) {
		return group - cardGroups<<24
	}
	return group
}

// Cards lists the cards of an attachment in the namespace n. If n is the pod, these are all cards of the attachment. If
// n is the node, these are the cards that have come back from the pod. own is the attachment's [PodGroup].
func (n *NS) Cards(own uint32) (cards []MovedLink, err error) {
	links, err := n.Links()
	for _, l := range links {
		if IsCard(l.Group) && l.Group&sameAttachment == own&sameAttachment {
			cards = append(cards, MovedLink{Name: l.Name, MAC: l.MAC, Group: l.Group})
		}
	}
	return cards, err
}

// FurtherTable returns the number of the routing table in the pod for the NIC i of an attachment. own is the
// attachment's [PodGroup]. An attachment has 128 NICs at most. No table of another program in a pod has such a number.
func FurtherTable(own uint32, i int) uint32 {
	return 1<<31 | own&sameAttachment<<furtherBits | uint32(i)&(1<<furtherBits-1)
}

const furtherBits = 7

// IsFurtherTable reports whether the number of a routing table is one that FurtherTable returns.
func IsFurtherTable(table uint32) bool { return table>>31 == 1 }

// DelFurther deletes the rules and the routes of an attachment's tables (see [FurtherTable]). own is the attachment's
// [PodGroup]. DelFurther finds the rules and routes by their tables, so their links may be gone.
func (n *NS) DelFurther(own uint32) error {
	ours := func(table uint32, protocol int) bool {
		return protocol == RouteProtocol && table>>furtherBits == FurtherTable(own, 0)>>furtherBits
	}
	rules, err1 := n.Rules()
	routes, err2 := n.Routes(RouteFilter{Protocol: RouteProtocol})
	var w Wiring
	for _, r := range routes {
		if ours(r.Table, r.Protocol) {
			w = append(w, Step{n, r})
		}
	}
	for _, r := range rules {
		if ours(r.Table, r.Protocol) {
			w = append(w, Step{n, r})
		}
	}
	return errors.Join(err1, err2, w.Del())
}
