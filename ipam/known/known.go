// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package known finds out what is true of a node's ENIs and addresses, and brings the registry to it. Metadata forgets,
// and is late by minutes; EC2's describes are late by seconds; the kernel shows what pods have. So each source shows a
// part, and no source shows everything.
package known

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
)

// A Node learns about this node.
type Node struct {
	call.Node
	Ahead      *Ahead // what a growth has asked already; nil: nothing
	PeersAsked bool   // a growth has asked for the peers, whatever EC2 has answered: it does not ask again
}
