// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

func eniif() *cli.Command {
	return &cli.Command{
		Name:        "eniif",
		Usage:       "List all ENI interfaces and their setup with addresses",
		Description: "It asks the metadata service, which lags some seconds behind EC2.",
		Action: func(c *cli.Context) error {
			enis, err := aws.New(aws.Options{}).ENIs(c.Context)
			if err != nil {
				return err
			}
			names, err := linkNames()
			if err != nil {
				return err
			}
			var rows []eniRow
			for _, e := range enis {
				rows = append(rows, eniRow{
					names[e.MAC], e.MAC, e.ID, e.Index, e.Card, e.Subnet, e.CIDR, list(e.SecurityGroups), e.VPC, list(e.Addrs),
				})
			}
			return table(c, rows)
		},
	}
}

// An eniRow is an ENI.
type eniRow struct {
	Iface          string       `json:"iface"` // empty if the node has no such link
	MAC            string       `json:"mac"`
	ID             string       `json:"id"`
	Index          int          `json:"index" head:"-"`
	Card           int          `json:"card" head:"-"`
	Subnet         string       `json:"subnet"`
	CIDR           netip.Prefix `json:"subnet_cidr"`
	SecurityGroups []string     `json:"secgrps"`
	VPC            string       `json:"vpc"`
	Addrs          []netip.Addr `json:"ips"`
}

// linkNames are the names of the node's links by MAC address. An ipvlan or a VLAN has the
// address of the link beneath it, which was there first and so has a lower index.
func linkNames() (map[string]string, error) {
	links, err := net.Interfaces() // package nl would need root for its socket
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	slices.SortFunc(links, func(a, b net.Interface) int { return cmp.Compare(b.Index, a.Index) })
	names := map[string]string{}
	for _, l := range links {
		names[l.HardwareAddr.String()] = l.Name
	}
	delete(names, "") // lo
	return names, nil
}
