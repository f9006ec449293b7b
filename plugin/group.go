// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import "encoding/binary"

// LinkGroup is the number of the group (ip-link(8)) that the attachment's links in the
// pod are in. The kernel deletes a group in one request, and makes everybody wait for
// that once; each link by itself is 10 ms. No other attachment in the namespace has the
// number, nor do people give such large ones.
func (r *Request[C]) LinkGroup() uint32 {
	return groups<<24 | binary.BigEndian.Uint32(Digest(r.Network, r.Attachment))>>8
}

// groups is the first byte of each LinkGroup.
const groups = 72

// Anothers tells of a link in the pod, by its group, whether it is another attachment's to a
// network of ours. A pod has one only: so this is about a second network for it; or it is
// another pod, whose namespace has the path by now that this one's had.
func (r *Request[C]) Anothers(group uint32) bool {
	return group>>24 == groups && group != r.LinkGroup()
}

// SecondNetwork is the error of an ADD of a second network of ours in a pod, which has one
// already by a link: both would have the routes to the VPC and to the node.
func (r *Request[C]) SecondNetwork(link string) error {
	return Errorf(CodeInvalid, "a pod takes one network of cni-ipvlan-vpc-k8s; for a further interface use another plugin, such as host-device",
		"%s in the pod is another attachment's to a network of cni-ipvlan-vpc-k8s", link)
}
