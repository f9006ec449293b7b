// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func maxPods() *cli.Command {
	return &cli.Command{
		Name:  "maxpods",
		Usage: "Print how many pods this instance type has addresses for",
		Description: `For the kubelet:

    kubelet --max-pods=$(` + Name + ` maxpods --max 110)

It counts every address of every ENI but the boot ENI, and on further network
cards but the one at device index 0. Pods that ask for a subnet, for security groups,
for an ENI or for a whole ENI take ENIs from the others: leave these out by
--except-enis, and so those that maxENIs of the configuration forbids. If EC2 does
not tell the limits, and this node has not asked before, it warns and takes the
kubelet's own, 110.` + cli.JSON("max_pods"),
		Flags: []cli.Flag{&cli.IntFlag{Name: "max", DefaultText: "no limit", Usage: "print `N` at most"},
			&cli.IntFlag{Name: "except-enis",
				Usage: "leave `N` ENIs out: they are for pods that ask for ENIs of their own, or " +
					"forbidden by maxENIs"}},
		Action: func(c *cli.Context) error {
			if n := c.Int("max"); n < 0 {
				return cli.Misuse(c, "--max %d: want a number of pods", n)
			}
			l, err := view.Limits(c.Context)
			if n := c.Int("except-enis"); n < 0 {
				return cli.Misuse(c, "--except-enis %d: want a number of ENIs", n)
			}
			pods := max(l.PodENIs()-c.Int("except-enis"), 0) * l.IPv4PerENI
			switch {
			case errors.Is(err, aws.ErrNoMetadata):
				return err
			case err != nil:
				slog.Warn("the limits of this instance type are not known: the kubelet's default is used", "pods",
					conf.KubeletPods, "error", err)
				pods = conf.KubeletPods
			}
			if c.IsSet("max") {
				pods = min(pods, c.Int("max"))
			}
			return cli.Answer(c, map[string]int{"max_pods": pods}, func(w io.Writer) { fmt.Fprintln(w, pods) })
		},
	}
}
