// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

func vpcCIDR() *cli.Command {
	return &cli.Command{
		Name:  "vpccidr",
		Usage: "Show the VPC CIDRs associated with current interfaces",
		Description: `As the metadata service says, and as EC2 says. What EC2 does not tell is
empty, with a warning.`,
		Action: func(c *cli.Context) error {
			cloud := aws.New(aws.Options{})
			ask := func(ctx context.Context, vpc string) ([]netip.Prefix, error) {
				cidrs, err := cloud.VPCCIDRs(ctx, vpc)
				if err != nil {
					slog.Warn("EC2 does not tell the CIDRs", "vpc", vpc, "error", err)
				}
				return cidrs, nil
			}
			var rows []vpcCIDRRow
			err := eachVPC(c.Context, cloud, ask, func(iface string, e aws.ENI, cidrs []netip.Prefix) {
				rows = append(rows, vpcCIDRRow{iface, list(e.VPCCIDRs), list(cidrs)})
			})
			if err != nil {
				return err
			}
			return table(c, rows)
		},
	}
}

// A vpcCIDRRow is an ENI and the CIDRs of its VPC.
type vpcCIDRRow struct {
	Iface    string         `json:"iface"`
	Metadata []netip.Prefix `json:"metadata_cidr" head:"metadata cidr"`
	EC2      []netip.Prefix `json:"aws_api_cidr" head:"aws api cidr"`
}

// eachVPC calls f with each ENI, the name of its link, and what ask says of its VPC; it
// asks once for each VPC.
func eachVPC(ctx context.Context, cloud *aws.Client, ask func(context.Context, string) ([]netip.Prefix, error),
	f func(iface string, e aws.ENI, cidrs []netip.Prefix)) error {
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		return err
	}
	names, err := linkNames()
	if err != nil {
		return err
	}
	known := map[string][]netip.Prefix{}
	for _, e := range enis {
		if _, ok := known[e.VPC]; !ok {
			if known[e.VPC], err = ask(ctx, e.VPC); err != nil {
				return err
			}
		}
		f(names[e.MAC], e, known[e.VPC])
	}
	return nil
}
