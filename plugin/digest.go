// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import "hash/fnv"

// Digest returns 16 bytes that identify an attachment to a network. Some names and numbers have room for only a part of
// the digest. An attacker can find two attachments with the same FNV digest. The attacker gains nothing by this: the
// ADDs of these two attachments work like two ADDs of one attachment.
func Digest(network string, a Attachment) []byte {
	h := fnv.New128a()
	h.Write([]byte(network + "\x00" + a.ContainerID + "\x00" + a.IfName))
	return h.Sum(nil)
}

// Digest returns the 16 bytes of the function Digest for the request's network and attachment.
func (r *Request[C]) Digest() []byte { return Digest(r.Network, r.Attachment) }
