// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"maps"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func subnets() *cli.Command {
	return &cli.Command{
		Name:  "subnets",
		Usage: "Show available subnets for this host",
		Description: `The subnets of the boot ENI's VPC in this availability zone, in the order of EC2's
answer.` + cli.JSON("[] id cidr default addresses_available tags"),
		Action: func(c *cli.Context) error {
			all, _, _, err := view.ZoneSubnets(c.Context, aws.New(aws.Options{}))
			if err != nil {
				return err
			}
			var rows []subnetRow
			for _, s := range all {
				tags := map[string]string{}
				maps.Copy(tags, s.Tags)
				delete(tags, "Name") // the tag Name is for people, so no subnetTags should have it
				rows = append(rows, subnetRow{s.ID, s.CIDR, s.Default, s.Free, tags})
			}
			return cli.Table(c, rows)
		},
	}
}

type subnetRow struct {
	ID      string            `json:"id"`
	CIDR    netip.Prefix      `json:"cidr"`
	Default bool              `json:"default"`
	Free    int               `json:"addresses_available"`
	Tags    map[string]string `json:"tags"`
}
