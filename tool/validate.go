// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func validate() *cli.Command {
	return &cli.Command{
		Name:  "validate",
		Usage: "Find all mistakes in network configurations",
		Description: `Before a runtime reads them, on a node or on the machine that makes images:

    ` + Name + ` validate --bin-dir= 10-cni-ipvlan-vpc-k8s.conflist

It looks for keys that no plugin knows, values that the plugins would refuse,
plugins in the wrong order or not installed, versions, and other files in the
same directory that would fight over what the node has once. If there are
mistakes, the exit status is 1.` + cli.JSON("[] file where mistake"),
		ArgsUsage: "CONFLIST...",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "bin-dir", Value: conf.UsualBinDir(), Usage: "look for the plugins in `DIR`; empty: do not look"},
		},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return cli.Misuse(c, "Insufficient Arguments: please specify a conflist")
			}
			var all []conf.Mistake
			for _, file := range c.Args().Slice() {
				found, err := conf.Mistakes(file, c.String("bin-dir"))
				if err != nil {
					return err
				}
				all = append(all, found...)
			}
			err := cli.Answer(c, cli.List(all), func(w io.Writer) {
				for _, m := range all {
					fmt.Fprintln(w, m)
				}
			})
			if err == nil && len(all) > 0 {
				err = errors.New(cli.Count(len(all), "mistake") + " in the configuration")
			}
			return err
		},
	}
}
