// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package plugin

import (
	"fmt"
	"hash/fnv"
)

// LinkGroup is the number of the group (ip-link(8)) that the attachment's links in the
// pod are in. The kernel deletes a group in one request, and makes everybody wait for
// that once; each link by itself is 10 ms. No other attachment in the namespace has the
// number, nor do people give such large ones.
func (r *Request[C]) LinkGroup() uint32 {
	const ours = 72 << 24
	h := fnv.New32a()
	fmt.Fprintf(h, "%s\x00%s\x00%s", r.Network, r.ContainerID, r.IfName)
	return ours | h.Sum32()>>8
}
