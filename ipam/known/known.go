// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package known finds out the truth about a node's ENIs and addresses, and corrects the registry. Metadata forgets
// ENIs, and is late by minutes. EC2's describes are late by seconds. The kernel shows only what pods have. So each
// source shows a part, and no source shows everything.
package known

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
)

// A Node compares the registry of this node with metadata, EC2 and the kernel.
type Node struct {
	call.Node
	Ahead      *Ahead // the questions that a growth has asked in advance; nil: none
	PeersAsked bool   // the growth has asked for the peers, and does not ask again even after an error
}
