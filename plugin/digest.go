// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"fmt"
	"hash/fnv"
)

// Digest is what tells an attachment to a network from all others: 16 bytes, of which a
// name or a number takes as many as it has room for. It need not withstand an adversary,
// who could as well ask for the same attachment twice.
func Digest(network string, a Attachment) []byte {
	h := fnv.New128a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", network, a.ContainerID, a.IfName)
	return h.Sum(nil)
}
