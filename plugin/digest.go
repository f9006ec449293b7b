// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import "hash/fnv"

// Digest returns 16 bytes that identify an attachment to a network. Names and numbers that are made from the digest
// contain fewer bytes, because not all 16 bytes fit. FNV is not a cryptographic hash, so an attacker can find two
// attachments with the same digest. The ADDs of these two attachments have the same effect as two ADDs of one
// attachment. An attacker who can call ADDs can also call two ADDs of one attachment, so the attacker gains nothing.
func Digest(network string, a Attachment) []byte {
	h := fnv.New128a()
	h.Write([]byte(network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	return h.Sum(nil)
}

// Digest returns the 16 bytes of the function Digest for the request's network and attachment.
func (r *Request[C]) Digest() []byte { return Digest(r.Network, r.Attachment) }
