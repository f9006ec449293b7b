// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func vpcPeerCIDR() *cli.Command {
	return &cli.Command{
		Name:  "vpcpeercidr",
		Usage: "Show the peered VPC CIDRs associated with current interfaces",
		Description: "The CIDRs of active peering connections. routeToVpcPeers adds these CIDRs to the pods' routes." +
			cli.JSON("[] iface peer_cidr"),
		Action: func(c *cli.Context) error {
			cloud := aws.New(aws.Options{})
			var rows []vpcPeerCIDRRow
			err := view.EachVPC(c.Context, cloud, cloud.PeerCIDRs, func(iface string, _ aws.ENI, cidrs []netip.Prefix) {
				rows = append(rows, vpcPeerCIDRRow{iface, cli.List(cidrs)})
			})
			if err != nil {
				return err
			}
			return cli.Table(c, rows)
		},
	}
}

type vpcPeerCIDRRow struct {
	Iface string         `json:"iface"`
	Peers []netip.Prefix `json:"peer_cidr" head:"peer_dcidr"` // the original's heading, which scripts know
}
