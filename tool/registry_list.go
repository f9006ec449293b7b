// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"net/netip"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func registryList() *cli.Command {
	return &cli.Command{
		Name:        "registry-list",
		Usage:       "List all known free IPs in the internal registry, also those that cool",
		Description: cli.JSON("[] ip released_on (null: never used) eni"),
		Action: func(c *cli.Context) error {
			s, err := cli.ViewRegistry()
			if err != nil {
				return err
			}
			var rows []freeRow
			for a, since := range s.Free.All() {
				row := freeRow{Addr: a, ReleasedOn: view.Moment(since)}
				row.ENI, _ = s.ENIOf(a)
				rows = append(rows, row)
			}
			return cli.Table(c, rows)
		},
	}
}

type freeRow struct {
	Addr       netip.Addr `json:"ip"`
	ReleasedOn *time.Time `json:"released_on" head:"-"` // nil: never used
	ENI        string     `json:"eni" head:"-"`         // empty if the registry does not know the ENI yet
}
