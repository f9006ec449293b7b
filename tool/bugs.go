// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func bugs() *cli.Command {
	return &cli.Command{
		Name:  "bugs",
		Usage: "Show any bugs associated with this instance",
		Description: `broken_cidr: the metadata service leaves out CIDRs of the VPC that EC2 has,
as it did on the first m5 and c5 instances. Both are asked and compared.` + cli.JSON("[] bug afflicted"),
		Action: func(c *cli.Context) error {
			cloud := aws.New(aws.Options{})
			broken := false
			err := view.EachVPC(c.Context, cloud, cloud.VPCCIDRs, func(_ string, e aws.ENI, cidrs []netip.Prefix) {
				broken = broken || slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return !slices.Contains(e.VPCCIDRs, p) })
			})
			if err != nil {
				return err
			}
			return cli.Table(c, []bugRow{{"broken_cidr", broken}})
		},
	}
}

// A bugRow is a bug of EC2.
type bugRow struct {
	Bug       string `json:"bug"`
	Afflicted bool   `json:"afflicted"`
}
