// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/release"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

func version() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "Print the version of this program",
		Description: `Plugins and tool of one node should have one version: doctor compares them.` +
			cli.JSON("version"),
		Action: func(c *cli.Context) error {
			v := release.Version()
			return cli.Answer(c, map[string]string{"version": v}, func(w io.Writer) {
				fmt.Fprintln(w, Name, "version", v)
			})
		},
	}
}
