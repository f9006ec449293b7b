// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"io"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

func repairNode() *cli.Command {
	return &cli.Command{
		Name:  "repair",
		Usage: "Put back the parts of the pods' network that the node has lost",
		Description: `cni-gc.service runs repair before each collection. nftables.service runs repair
by a drop-in, because nftables.service flushes the ruleset. repair puts back:

  - the table of nftables, the rules and sysctls that serve all pods
  - the routes, rules and neighbours of each running pod
  - the veth pair of a running pod, with its default route, routes and rules
  - the egress of a running client or router, by the present configuration

It repairs only networks of the configuration that have pods on this node. In a pod's namespace, it
changes only the egress, and the objects of a new pair. It only reports other losses there. For the
inputs of a pod's ADD, it reads the files of the runtime in /var/lib/cni. Without such a file, it
uses the registry, if the pod's lease is at least five minutes old. It reports each repair on
standard error, and asks neither EC2 nor the metadata service. If it could not put something back,
the exit status is 1.` + cli.JSON("repaired"),
		Flags: []cli.Flag{conf.Flag()},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			repaired, err := repair.Node(c.Context, conf.Load(c.String("config")))
			return errors.Join(err, cli.Answer(c, map[string]any{"repaired": repaired}, func(io.Writer) {}))
		},
	}
}
