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

// furtherGroup is the first byte of the groups of further attachments, as OwnGroup is that of
// first ones. The rest of the number is the attachment's in both.
const furtherGroup, sameAttachment = OwnGroup + 1, 1<<24 - 1

// FurtherGroup is the group of the links of a further attachment, by its [PodGroup].
func FurtherGroup(own uint32) uint32 { return furtherGroup<<24 | own&sameAttachment }

// Further reports whether an attachment is a further one of its pod, by all links of the pod and
// its [PodGroup].
func Further(links []Link, own uint32) bool {
	has := func(group uint32) bool {
		return slices.ContainsFunc(links, func(l Link) bool { return l.Group == group })
	}
	return has(FurtherGroup(own)) || !has(own) && OtherFirst(links, own)
}

// OtherFirst reports whether a link is of another attachment that is the first of its pod.
func OtherFirst(links []Link, own uint32) bool {
	return slices.ContainsFunc(links, func(l Link) bool { return l.Group>>24 == OwnGroup && l.Group != own })
}

// FurtherTable is the number of the routing table in the pod for the NIC i of an attachment, by
// its [PodGroup]. An attachment has 128 at most. No table of others in a pod has such a number.
func FurtherTable(own uint32, i int) uint32 {
	return 1<<31 | own&sameAttachment<<furtherBits | uint32(i)&(1<<furtherBits-1)
}

const furtherBits = 7

// IsFurtherTable reports whether a routing table is one of those that FurtherTable numbers.
func IsFurtherTable(table uint32) bool { return table>>31 == 1 }

// DelFurther deletes the rules and the routes of an attachment's further NICs, by its
// [PodGroup]. It finds them by their tables, so their links may be gone.
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
