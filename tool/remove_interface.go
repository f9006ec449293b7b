// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

func removeInterface() *cli.Command {
	return &cli.Command{
		Name:  "remove-interface",
		Usage: "Remove an existing interface",
		Description: `It detaches ENIs and deletes them, and takes up where it was interrupted. An
ENI whose addresses pods of this node have is left alone: drain the node first.`,
		ArgsUsage: "ENI...",
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return misuse(c, "Insufficient Arguments: please specify an interface")
			}
			p, err := openPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			var failed error
			var removed []string
			for _, id := range c.Args().Slice() {
				stop := working("detach " + id + " and delete it")
				err := p.Remove(c.Context, id)
				stop()
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				removed = append(removed, id)
			}
			return errors.Join(failed, answer(c, map[string][]string{"removed": list(removed)}, func(io.Writer) {}))
		},
	}
}
