// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// PodGroup returns the group (ip-link(8)) of the links that a first attachment has in its pod. For a further
// attachment, see [FurtherGroup]. digest is a hash that identifies the attachment, so no other attachment in the
// namespace has this group. Operators do not choose such large numbers for their own groups.
//
// One request deletes all links of a group in some 10 ms. Meanwhile, other changes of links and routes on the machine
// wait. To delete the links one by one would take 10 ms for each.
func PodGroup(digest []byte) uint32 { return OwnGroup<<24 | binary.BigEndian.Uint32(digest)>>8 }

// Foreign reports whether a link in a pod belongs to an attachment of our networks, but not to the caller's attachment.
// group is the link's group, and podGroup is the [PodGroup] of the caller's attachment. If Foreign returns true, the
// pod has several attachments, or the path of its namespace now leads to another pod (see OpenOther).
func Foreign(group, podGroup uint32) bool {
	group = Attachment(group)
	return (group>>24 == OwnGroup || group>>24 == furtherGroupByte) && group&attachmentMask != podGroup&attachmentMask
}

// InGroup returns the name of a link for whose group isWanted returns true, or "" if there is no such link. Of several
// names, it returns the first in alphabetical order, because kernels list links in different orders.
func InGroup(links []Link, isWanted func(group uint32) bool) (first string) {
	for _, l := range links {
		if isWanted(l.Group) && (first == "" || l.Name < first) {
			first = l.Name
		}
	}
	return first
}

// DelGroup deletes all links of a group, and the other ends of their veth pairs. The error is fs.ErrNotExist if the
// group has no links. If a link of the group cannot be deleted (lo or a network card), the kernel deletes no link of
// the group. DelGroup then gives group 0 to such links, and tries again.
func (n *NS) DelGroup(group uint32) error {
	if group == 0 {
		return errors.New("group 0 is the default group of all links")
	}
	clear(n.indices)
	clear(n.seen)
	del := func() error {
		return n.applyChange(unix.RTM_DELLINK, 0, linkMessage(), attr32(unix.IFLA_GROUP, group))
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

// ungroup gives group 0 to those links of a group that cannot be deleted. The caller can then delete the group with one
// request. A pod may have put thousands of links into the group. A separate request for each link would take 10 ms or
// more.
func (n *NS) ungroup(group uint32) error {
	links, err := n.Links()
	for _, l := range links {
		if l.Group != group || l.Kind != RealLink {
			continue
		}
		msg := linkMessage()
		msg.Index = int32(l.Index)
		err = errors.Join(err, n.applyChange(unix.RTM_SETLINK, 0, msg, attr32(unix.IFLA_GROUP, 0)))
	}
	return err
}
