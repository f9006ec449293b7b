// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// kubeletPods is the kubelet's own limit (kubelet(1), --max-pods).
const kubeletPods = 110

func maxPods() *cli.Command {
	return &cli.Command{
		Name:  "maxpods",
		Usage: "Print how many pods this instance type has addresses for",
		Description: `For the kubelet:

    kubelet --max-pods=$(` + Name + ` maxpods --max 110)

It counts every address of every ENI but the boot ENI, and on further network
cards but the one at device index 0. If EC2 does not tell the limits, it warns
and takes the kubelet's own, 110.`,
		Flags: []cli.Flag{&cli.IntFlag{Name: "max", DefaultText: "no limit", Usage: "print `N` at most"}},
		Action: func(c *cli.Context) error {
			l, err := instanceLimits(c.Context)
			pods := l.PodENIs() * l.IPv4PerENI
			switch {
			case errors.Is(err, aws.ErrNoMetadata):
				return err
			case err != nil:
				slog.Warn("the limits of this instance type are not known: assuming the kubelet's", "pods", kubeletPods, "error", err)
				pods = kubeletPods
			}
			if c.IsSet("max") {
				pods = min(pods, c.Int("max"))
			}
			return answer(c, map[string]int{"max_pods": pods}, func(w io.Writer) { fmt.Fprintln(w, pods) })
		},
	}
}
