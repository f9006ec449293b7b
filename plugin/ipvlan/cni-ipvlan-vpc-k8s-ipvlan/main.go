// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s-ipvlan is the middle plugin of the chain: it puts a
// slave of an ENI into the pod.
package main

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
)

func main() {
	plugin.Main("cni-ipvlan-vpc-k8s-ipvlan", lease.NotesUse(ipvlan.Commands(lease.LinkName)))
}
