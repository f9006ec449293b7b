// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func vpcCIDR() *cli.Command {
	return &cli.Command{
		Name:  "vpccidr",
		Usage: "Show the VPC CIDRs associated with current interfaces",
		Description: `It asks the metadata service and EC2. If EC2 does not answer, its column is empty,
and there is a warning.` + cli.JSON("[] iface metadata_cidr aws_api_cidr"),
		Action: func(c *cli.Context) error {
			cloud := aws.New(aws.Options{})
			ask := func(ctx context.Context, vpc string) ([]netip.Prefix, error) {
				cidrs, err := cloud.VPCCIDRs(ctx, vpc)
				if err != nil {
					slog.Warn("EC2 did not list the CIDRs of the VPC, so its column is empty", "vpc", vpc, "error", err)
				}
				return cidrs, nil
			}
			var rows []vpcCIDRRow
			err := view.EachVPC(c.Context, cloud, ask, func(iface string, e aws.ENI, cidrs []netip.Prefix) {
				rows = append(rows, vpcCIDRRow{iface, cli.List(e.VPCCIDRs), cli.List(cidrs)})
			})
			if err != nil {
				return err
			}
			return cli.Table(c, rows)
		},
	}
}

type vpcCIDRRow struct {
	Iface    string         `json:"iface"`
	Metadata []netip.Prefix `json:"metadata_cidr" head:"metadata cidr"`
	EC2      []netip.Prefix `json:"aws_api_cidr" head:"aws api cidr"`
}
