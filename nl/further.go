// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"slices"
)

// The first attachment of a pod has its veth pair, its default route, and its first NIC. Other
// attachments to networks of ours are further ones. They have only NICs that answer by
// themselves, each by a rule and a routing table of its own.
//
// The groups of the links show which attachment is which. A link has its group from the moment
// in which it exists, so this is also right if an ADD was killed. An attachment stays what it
// is, whatever attachments end or begin after it: its own links decide before those of others.
// The first attachment may end first. Then the pod has no pair until an attachment begins that
// has no link yet.

// furtherGroup is the first byte of the groups of further attachments. OwnGroup is the first byte of the groups of
// first attachments. The rest of the number is the attachment's in both.
const furtherGroup, sameAttachment = OwnGroup + 1, 1<<24 - 1

// FurtherGroup is the group of the links of a further attachment, by its [PodGroup].
func FurtherGroup(own uint32) uint32 { return furtherGroup<<24 | own&sameAttachment }

// Further reports whether an attachment is a further one of its pod, by all links of the pod and
// its [PodGroup].
func Further(links []Link, own uint32) bool {
	has := func(group uint32) bool {
		return slices.ContainsFunc(links, func(l Link) bool { return Attachment(l.Group) == group })
	}
	return has(FurtherGroup(own)) || !has(own) && OtherFirst(links, own)
}

// OtherFirst reports whether a link is of another attachment that is the first of its pod.
func OtherFirst(links []Link, own uint32) bool {
	return slices.ContainsFunc(links, func(l Link) bool {
		g := Attachment(l.Group)
		return g>>24 == OwnGroup && g != own
	})
}

// A pod's network card, see [MovedLink], has a group of its own. The other links of its attachment have another group.
// The kernel deletes no group that has a card, and DelGroup must not touch it: a card goes back to the node.
const cardGroups = furtherGroup - OwnGroup + 1

// CardGroup is the group of an attachment's cards, by the group of its other links.
func CardGroup(group uint32) uint32 { return group + cardGroups<<24 }

// IsCard reports whether a group is one that CardGroup returns for groups of ours.
func IsCard(group uint32) bool {
	return group>>24 == OwnGroup+cardGroups || group>>24 == furtherGroup+cardGroups
}

// Attachment is the group of the other links of the attachment that has a link of the group.
func Attachment(group uint32) uint32 {
	if IsCard(group) {
		return group - cardGroups<<24
	}
	return group
}

// Cards are the cards that an attachment has in the pod, or that have come back to the node from
// there, by its [PodGroup].
func (n *NS) Cards(own uint32) (cards []MovedLink, err error) {
	links, err := n.Links()
	for _, l := range links {
		if IsCard(l.Group) && l.Group&sameAttachment == own&sameAttachment {
			cards = append(cards, MovedLink{Name: l.Name, MAC: l.MAC, Group: l.Group})
		}
	}
	return cards, err
}

// FurtherTable is the number of the routing table in the pod for the NIC i of an attachment, by
// its [PodGroup]. An attachment has 128 at most. No table of others in a pod has such a number.
func FurtherTable(own uint32, i int) uint32 {
	return 1<<31 | own&sameAttachment<<furtherBits | uint32(i)&(1<<furtherBits-1)
}

const furtherBits = 7

// IsFurtherTable reports whether a routing table is one of those that FurtherTable numbers.
func IsFurtherTable(table uint32) bool { return table>>31 == 1 }

// DelFurther deletes the rules and the routes of an attachment's further NICs, by its [PodGroup]. DelFurther finds the
// rules and routes by their tables, so their links may be gone.
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
