// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package less gives back what the node does not need: leases of pods that are gone, addresses,
// prefixes and ENIs. What it gives back, EC2 may give to another node at once. So it first shows
// that no pod has it, and takes it from the registry before it asks EC2.
package less

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
)

// A Node gives back what this node does not need.
type Node struct{ known.Node }
