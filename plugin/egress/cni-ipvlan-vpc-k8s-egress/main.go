// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s-egress is a chained plugin: packets of some pods leave with the addresses of other pods.
package main

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

func main() { plugin.Main("cni-ipvlan-vpc-k8s-egress", egress.Commands()) }
