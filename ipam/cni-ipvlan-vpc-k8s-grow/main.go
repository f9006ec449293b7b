// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s-grow gets addresses from EC2 for an ADD that finds no free address. The plugins execute
// this program. No configuration names it.
package main

import (
	"os"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

func main() { plugin.Main(lease.GrowProgram, ipam.Commands(os.Args[1:]...)) }
