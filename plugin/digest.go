// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import "hash/fnv"

// Digest returns 16 bytes that identify an attachment to a network. Not all names and numbers that are made from the
// digest have room for 16 bytes. An attacker can find two attachments with the same FNV digest. Their ADDs then have
// the effect of two ADDs of one attachment, which the attacker could also call.
func Digest(network string, a Attachment) []byte {
	h := fnv.New128a()
	h.Write([]byte(network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	return h.Sum(nil)
}

// Digest returns the 16 bytes of the function Digest for the request's network and attachment.
func (r *Request[C]) Digest() []byte { return Digest(r.Network, r.Attachment) }
