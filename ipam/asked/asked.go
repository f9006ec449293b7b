// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package asked gets from EC2 what a single pod asks for: an ENI by its ID, or addresses that the pod has chosen.
// Before that, package lease has decided whether the pod may have this ENI or these addresses. Package asked takes an
// address from another node only if EC2 says that the instance of that node has ended: see follow.go.
package asked

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
)

// A Node gets the ENIs and addresses for which single pods ask.
type Node struct{ more.Node }
