// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// InGroup is the name of the first of some links, by their names, that is in such a group,
// or "". (The order in which kernels list links differs.)
func InGroup(links []Link, such func(group uint32) bool) (first string) {
	for _, l := range links {
		if such(l.Group) && (first == "" || l.Name < first) {
			first = l.Name
		}
	}
	return first
}

// DelGroup deletes all links of a group, and what they are one end of. The error answers
// to fs.ErrNotExist if there is none. A link that cannot be deleted, as lo or a network
// card, it takes out of the group: because of it the kernel would leave the others, too.
func (n *NS) DelGroup(group uint32) error {
	if group == 0 { // of all links that are in no other
		return errors.New("group 0 is everybody's")
	}
	clear(n.indices)
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

// ungroup takes those links out of a group that nobody can delete. To delete the others one
// by one instead would take 10 ms or more for each, and a pod may have put thousands there.
func (n *NS) ungroup(group uint32) error {
	links, err := n.Links()
	for _, l := range links {
		if l.Group != group || l.Kind != realLink {
			continue
		}
		msg := linkMessage()
		msg.Index = int32(l.Index)
		err = errors.Join(err, n.change(unix.RTM_SETLINK, 0, msg, attr32(unix.IFLA_GROUP, 0)))
	}
	return err
}
