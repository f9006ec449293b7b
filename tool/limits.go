// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

func limits() *cli.Command {
	return &cli.Command{
		Name:  "limits",
		Usage: "Display limits for ENI for this instance type",
		Action: func(c *cli.Context) error {
			l, err := instanceLimits(c.Context)
			if err != nil {
				return err
			}
			row := limitsRow{l.ENIs, l.IPv4PerENI, l.IPv6PerENI}
			return answer(c, row, func(w io.Writer) { tabulate(w, []limitsRow{row}) })
		},
	}
}

// A limitsRow is what the instance can have.
type limitsRow struct {
	ENIs int `json:"adapters"`
	IPv4 int `json:"ipv4"` // addresses of an ENI, the primary one included
	IPv6 int `json:"ipv6"`
}

// instanceLimits asks EC2 for the limits of this instance's type.
func instanceLimits(ctx context.Context) (aws.Limits, error) {
	cloud := aws.New(aws.Options{})
	i, err := cloud.Instance(ctx)
	if err != nil {
		return aws.Limits{}, err
	}
	return cloud.Limits(ctx, i.Type)
}
