// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// PodGroup is the group (ip-link(8)) of the links that one attachment has in its pod. The number follows from the
// attachment's digest, so no other attachment in the namespace has it. Operators do not choose such large numbers. The
// links of a further attachment are in [FurtherGroup].
//
// The kernel deletes all links of a group in one request. All other changes wait for this request once, some 10 ms. If
// the kernel deleted each link by itself, all other changes would wait 10 ms for each link.
func PodGroup(digest []byte) uint32 { return OwnGroup<<24 | binary.BigEndian.Uint32(digest)>>8 }

// Foreign reports whether a link in a pod belongs to another attachment to a network of ours. group is the link's
// group, and own is the [PodGroup] of the caller's attachment. If Foreign is true, either the pod has several
// attachments, or the caller's path now leads to another pod's namespace.
func Foreign(group, own uint32) bool {
	group = Attachment(group)
	return (group>>24 == OwnGroup || group>>24 == furtherGroup) && group&sameAttachment != own&sameAttachment
}

// InGroup returns the name of a link for whose group the function such returns true, or "" if there is none. Of several
// names, InGroup returns the first in alphabetical order, because kernels list links in different orders.
func InGroup(links []Link, such func(group uint32) bool) (first string) {
	for _, l := range links {
		if such(l.Group) && (first == "" || l.Name < first) {
			first = l.Name
		}
	}
	return first
}

// DelGroup deletes all links of a group, and the other ends of veth pairs. The error is fs.ErrNotExist if the group has
// no links. If a group has a link that cannot be deleted, such as lo or a network card, the kernel deletes no link of
// the group. Then DelGroup takes such links out of the group, and tries again.
func (n *NS) DelGroup(group uint32) error {
	if group == 0 {
		return errors.New("group 0 is the default group of all links")
	}
	clear(n.indices)
	clear(n.seen)
	del := func() error {
		return n.change(unix.RTM_DELLINK, 0, linkMessage(), attr32(unix.IFLA_GROUP, group))
	}
	err := del()
	if errors.Is(err, unix.EOPNOTSUPP) {
		if err = n.ungroup(group); err == nil {
			err = del()
		}
	}
	if err != nil {
		return fmt.Errorf("%s: ip link del group %d: %w", n.Name, group, err)
	}
	return nil
}

// ungroup takes the links that cannot be deleted out of a group. Deleting the other links one by one would take 10 ms
// or more for each link. A pod may have put thousands of links into the group.
func (n *NS) ungroup(group uint32) error {
	links, err := n.Links()
	for _, l := range links {
		if l.Group != group || l.Kind != RealLink {
			continue
		}
		msg := linkMessage()
		msg.Index = int32(l.Index)
		err = errors.Join(err, n.change(unix.RTM_SETLINK, 0, msg, attr32(unix.IFLA_GROUP, 0)))
	}
	return err
}
