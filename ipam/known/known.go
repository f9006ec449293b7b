// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package known finds out which ENIs and addresses a node really has, and corrects the registry. No single source is
// enough. Metadata forgets ENIs and lags by minutes. EC2's descriptions lag by seconds. The kernel shows only addresses
// that pods have.
package known

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
)

// A Node compares the registry of this node with metadata, EC2 and the kernel.
type Node struct {
	call.Node
	Ahead      *Ahead // the questions that a growth has asked EC2 in advance; nil: none
	PeersAsked bool   // the growth has already asked for the peers, and does not ask again, not even after an error
}
