// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"slices"
)

// A pod has one first attachment, with the pod's veth pair, default route and first NIC. Its other attachments to our
// networks are further attachments, which have only NICs. Each of these NICs has a rule and a routing table of its own,
// so an answer leaves through the NIC at which the request has arrived.
//
// The groups of a pod's links show which attachment is the first. A link has its group from its creation on, even if
// the ADD is killed. The function Further looks first at the attachment's own links. So an attachment that has links
// never changes from first to further or back. If the first attachment ends before the further attachments, the pod has
// no pair until a new attachment becomes the first.

// furtherGroupByte is the first byte of the groups of further attachments. OwnGroup is the first byte of the groups of
// first attachments. The other three bytes (attachmentMask) identify the attachment.
const furtherGroupByte, attachmentMask = OwnGroup + 1, 1<<24 - 1

// FurtherGroup returns the group of a further attachment's links. The attachment's network cards (see [MovedLink]) have
// another group: see CardGroup. podGroup is the [PodGroup] of the attachment.
func FurtherGroup(podGroup uint32) uint32 { return furtherGroupByte<<24 | podGroup&attachmentMask }

// Further reports whether an attachment is a further attachment of its pod. The argument "links" has all links of the
// pod. podGroup is the [PodGroup] of the attachment.
func Further(links []Link, podGroup uint32) bool {
	has := func(group uint32) bool {
		return slices.ContainsFunc(links, func(l Link) bool { return Attachment(l.Group) == group })
	}
	return has(FurtherGroup(podGroup)) || !has(podGroup) && OtherFirst(links, podGroup)
}

// OtherFirst reports whether the pod has a first attachment with another [PodGroup] than podGroup. The argument "links"
// has the links of the pod.
func OtherFirst(links []Link, podGroup uint32) bool {
	return slices.ContainsFunc(links, func(l Link) bool {
		g := Attachment(l.Group)
		return g>>24 == OwnGroup && g != podGroup
	})
}

// Network cards (see [MovedLink]) have a group of their own. The kernel refuses to delete a group that has a card, and
// DelGroup must not touch the card, because the card goes back to the node.
const cardGroupOffset = furtherGroupByte - OwnGroup + 1

// CardGroup returns the group of an attachment's network cards. group is the group of the attachment's other links.
func CardGroup(group uint32) uint32 { return group + cardGroupOffset<<24 }

// IsCard reports whether a link with this group is the network card of an attachment (see CardGroup).
func IsCard(group uint32) bool {
	return group>>24 == OwnGroup+cardGroupOffset || group>>24 == furtherGroupByte+cardGroupOffset
}

// Attachment takes the group of an attachment's cards, and returns the group of the attachment's other links.
// Attachment returns any other group unchanged.
func Attachment(group uint32) uint32 {
	if IsCard(group) {
		return group - cardGroupOffset<<24
	}
	return group
}

// Cards lists those network cards of an attachment that are in the namespace n. The cards of an attachment are in the
// pod, or on the node: when the pod's namespace ends, the kernel moves the cards to the node. podGroup is the
// [PodGroup] of the attachment.
func (n *NS) Cards(podGroup uint32) (cards []MovedLink, err error) {
	links, err := n.Links()
	for _, l := range links {
		if IsCard(l.Group) && l.Group&attachmentMask == podGroup&attachmentMask {
			cards = append(cards, MovedLink{Name: l.Name, MAC: l.MAC, Group: l.Group})
		}
	}
	return cards, err
}

// FurtherTable returns the number of the pod's routing table for the i-th NIC of a further attachment. An attachment
// has 128 NICs at most. podGroup is the [PodGroup] of the attachment. In a pod, no other program uses tables with the
// numbers that FurtherTable returns.
func FurtherTable(podGroup uint32, i int) uint32 {
	return 1<<31 | podGroup&attachmentMask<<nicBits | uint32(i)&(1<<nicBits-1)
}

const nicBits = 7

// IsFurtherTable reports whether FurtherTable can return this number.
func IsFurtherTable(table uint32) bool { return table>>31 == 1 }

// DelFurther deletes our rules and routes whose table is a [FurtherTable] of an attachment, even if the attachment's
// links are gone. podGroup is the [PodGroup] of the attachment.
func (n *NS) DelFurther(podGroup uint32) error {
	ours := func(table uint32, protocol int) bool {
		return protocol == RouteProtocol && table>>nicBits == FurtherTable(podGroup, 0)>>nicBits
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
