// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package more gets more addresses for a node: prefixes or addresses on an ENI with room, or a new ENI in a free slot.
// Package more also finishes what a killed process has begun. A full node can get a new ENI only after another ENI is
// deleted, so package more uses package less.
package more

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
)

// A Node gets more addresses for this node.
type Node struct{ less.Node }
