// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s-unnumbered-ptp is the third plugin of the chain: it puts a veth pair between the pod and
// the node.
package main

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

func main() { plugin.Main("cni-ipvlan-vpc-k8s-unnumbered-ptp", ptp.Commands()) }
