// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s is one program with all plugins of the chain.
package main

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/chain"
)

func main() { plugin.Main("cni-ipvlan-vpc-k8s", chain.Commands()) }
