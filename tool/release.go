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
		Usage: "Release the addresses to EC2 that pods had chosen and that no pod has any more",
		Description: `For a systemd path unit: a pod that asks for an address (requests) may come again
on another node, and its ADD waits there for the address. So this does not wait
for --free-after. It looks at the kernel first, and releases only what no
process of the node uses. It takes the mark ` + registry.Dir() + `/` + lease.Release + `
away, which the DEL of such a pod leaves. What it cannot release now, the next
registry-gc does. If no such address is free, it asks EC2 nothing.` + cli.JSON("unassigned"),
		Flags: []cli.Flag{conf.Flag()},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			// Before the work, as warm does: a DEL may leave it again meanwhile.
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
			ctx, cancel := context.WithTimeout(c.Context, filling)
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
