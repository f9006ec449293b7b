// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func bugs() *cli.Command {
	return &cli.Command{
		Name:  "bugs",
		Usage: "Show any bugs associated with this instance",
		Description: `broken_cidr: the metadata service leaves out some CIDRs of the VPC, as it did on the
first m5 and c5 instances. The command compares the CIDRs that metadata shows with
the CIDRs that EC2 shows.` + cli.JSON("[] bug afflicted"),
		Action: func(c *cli.Context) error {
			cloud := aws.New(aws.Options{})
			enis, err := cloud.ENIs(c.Context)
			if err != nil {
				return err
			}
			lacking, err := view.Lacking(c.Context, cloud, enis)
			if err != nil {
				return err
			}
			return cli.Table(c, []bugRow{{"broken_cidr", len(lacking) > 0}})
		},
	}
}

// A bugRow is a known bug of the metadata service. Afflicted reports whether this node's metadata service has the bug.
type bugRow struct {
	Bug       string `json:"bug"`
	Afflicted bool   `json:"afflicted"`
}
