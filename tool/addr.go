// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func addr() *cli.Command {
	return &cli.Command{
		Name:  "addr",
		Usage: "List all bound IP addresses",
		Description: "IPv4 addresses of this node and of every network namespace on it." +
			cli.JSON("[] iface ip netns (of the pod; \"\": the node's)"),
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			host, err := nl.Node()
			if err != nil {
				return err
			}
			defer host.Close()
			rows, err := view.Addrs(host, "")
			if err != nil {
				return err
			}
			partial := lease.EachNetNS(func(ns *nl.NS) error {
				more, err := view.Addrs(ns, ns.Name)
				rows = append(rows, more...)
				return err
			})
			if err := cli.Table(c, rows); err != nil {
				return err
			}
			return partial
		},
	}
}
