// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package asked gets what a single pod asks for: an ENI by its ID, or addresses of its choice.
// Package lease permits what a pod asks for, and finds it if the node has it already. This
// package asks EC2. It takes nothing that another pod, another ENI or another instance has.
package asked

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
)

// A Node gets what single pods ask for.
type Node struct{ more.Node }
