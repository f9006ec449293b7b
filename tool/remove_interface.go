// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func removeInterface() *cli.Command {
	return &cli.Command{
		Name:  "remove-interface",
		Usage: "Remove an existing interface",
		Description: `It detaches ENIs and deletes them. If it was interrupted, the next run continues. It
refuses these ENIs:

  - an ENI with the address of a pod of this node, as a single address or in a prefix.
    The command looks for pods in the registry and in the kernel. Drain the node first
  - an ENI that is attached to another instance, or was created for another instance
  - an ENI with the tag ` + book.TagNoManage + `=true
  - an ENI for which pods may ask (requests in the configuration), because an
    operator has created it

If the command cannot read the configuration, it refuses all ENIs.` + cli.JSON("removed"),
		ArgsUsage: "ENI...",
		Flags:     []cli.Flag{conf.Flag()},
		Action: func(c *cli.Context) error {
			if !c.Args().Present() {
				return cli.Misuse(c, "Insufficient Arguments: please specify an interface")
			}
			// The configuration says for which ENIs pods may ask. An operator has created these ENIs, and the command
			// must not delete them.
			conflists := conf.Load(c.String("config"))
			if _, err := conflists.All(); err != nil && (c.IsSet("config") || !conf.Absent(err)) {
				return err
			}
			policy, err := conflists.Common()
			if err != nil {
				return err
			}
			policy.Provision = "" // provision restricts what the node does by itself, but here an operator asks
			p, err := cli.OpenPool(policy)
			if err != nil {
				return err
			}
			defer p.Close()
			var failed error
			var removed []string
			for _, id := range c.Args().Slice() {
				stop := cli.Working("detach " + id + " and delete it")
				err := p.Remove(c.Context, id)
				stop()
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("remove %s: %w", id, err))
					continue
				}
				removed = append(removed, id)
			}
			return errors.Join(failed, cli.Answer(c, map[string][]string{"removed": cli.List(removed)},
				func(io.Writer) {}))
		},
	}
}
