// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"io"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func limits() *cli.Command {
	return &cli.Command{
		Name:        "limits",
		Usage:       "Display limits for ENI for this instance type",
		Description: cli.JSON("adapters ipv4 ipv6"),
		Action: func(c *cli.Context) error {
			l, err := view.Limits(c.Context)
			if err != nil {
				return err
			}
			row := limitsRow{l.ENIs, l.IPv4PerENI, l.IPv6PerENI}
			return cli.Answer(c, row, func(w io.Writer) { cli.Tabulate(w, []limitsRow{row}) })
		},
	}
}

type limitsRow struct {
	ENIs int `json:"adapters"`
	IPv4 int `json:"ipv4"` // addresses of an ENI, including its primary address
	IPv6 int `json:"ipv6"`
}
