// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func releaseChosen() *cli.Command {
	return &cli.Command{
		Name:  "release",
		Usage: "Release to EC2 the addresses that pods had chosen and that no pod has any more",
		Description: `For a systemd path unit. If a pod has asked for an address (key requests), the pod
may start again on another node. Its ADD there waits for the address. So this
command does not wait for the --free-after of registry-gc. It first asks the kernel,
and releases only addresses that nothing on the node uses. The DEL of a pod with a
chosen address leaves the file
` + registry.Dir() + `/` + lease.Release + `, which this command removes.
The next registry-gc releases what this command cannot release now. If no chosen
address is free, the command does not call EC2. If a network of the node has "provision":
"none", neither this command nor registry-gc releases an address.` + cli.JSON("unassigned"),
		Flags: []cli.Flag{conf.Flag()},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			// Remove the mark first. If a DEL leaves the mark again during the work, the mark must stay for the next
			// run. The command "warm" does the same.
			mark := filepath.Join(registry.Dir(), lease.Release)
			if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			policy, err := conf.Load(c.String("config")).Common()
			if err != nil {
				return fmt.Errorf("no address is released, because the configuration cannot be read: %w", err)
			}
			p, err := cli.OpenPool(policy)
			if err != nil {
				return err
			}
			defer p.Close()
			ctx, cancel := context.WithTimeout(c.Context, fillTimeout)
			defer cancel()
			gone, err := p.ReleaseChosen(ctx)
			return errors.Join(err, cli.Answer(c, map[string]any{"unassigned": cli.List(gone)}, func(w io.Writer) {
				for _, a := range gone {
					fmt.Fprintln(w, a)
				}
			}))
		},
	}
}
