// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

func addr() *cli.Command {
	return &cli.Command{
		Name:        "addr",
		Usage:       "List all bound IP addresses",
		Description: "IPv4 addresses of this node and of every network namespace on it.",
		Action: func(c *cli.Context) error {
			if err := needRoot(); err != nil {
				return err
			}
			host, err := nl.Host()
			if err != nil {
				return err
			}
			defer host.Close()
			rows, err := boundTo(host, "")
			if err != nil {
				return err
			}
			partial := lease.EachNetNS(func(ns *nl.NS) error {
				more, err := boundTo(ns, ns.Name)
				rows = append(rows, more...)
				return err
			})
			if err := table(c, rows); err != nil {
				return err
			}
			return partial
		},
	}
}

// An addrRow is an address that a link has.
type addrRow struct {
	Iface string     `json:"iface"`
	Addr  netip.Addr `json:"ip"`
	NetNS string     `json:"netns" head:"-"` // its path; empty on the node itself
}

// boundTo lists the addresses that links of a namespace have.
func boundTo(ns *nl.NS, path string) ([]addrRow, error) {
	addrs, err := ns.Addrs("")
	var rows []addrRow
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() {
			rows = append(rows, addrRow{a.Dev, a.Prefix.Addr(), path})
		}
	}
	return rows, err
}
