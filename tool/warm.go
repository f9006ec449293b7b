// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func warm() *cli.Command {
	return &cli.Command{
		Name:  "warm",
		Usage: "Fill each pool up to the number of free addresses in its configuration (warm.min)",
		Description: `For a systemd path unit, and before the kubelet starts. If a pool has fewer free
addresses than warm.min, this command asks EC2 for more, so that ADDs need not ask.
With maxPods, it does not ask for addresses beyond that number. If networks share a
pool, their largest numbers apply. For a pool with enough addresses, the command
does not ask EC2.

An ADD that takes one of the last addresses leaves the file
` + registry.Dir() + `/` + lease.Refill + `, which this command removes.
If no pod uses a requested ENI any more (key requests), a DEL leaves the file, too.
This command then detaches the ENI.` + cli.JSON("[] pool free min"),
		Flags: []cli.Flag{conf.Flag()},
		Action: func(c *cli.Context) error {
			if err := cli.NeedRoot(); err != nil {
				return err
			}
			conflists := conf.Load(c.String("config"))
			pools := conflists.Pools()
			if _, err := conflists.All(); len(pools) == 0 {
				return err
			}
			// Remove the mark before the work, because an ADD may leave the mark again during the work. Do not restore
			// the mark if the work fails: systemd would start the command again at once.
			mark := filepath.Join(registry.Dir(), lease.Refill)
			if err := os.Remove(mark); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			if _, err := cli.ViewRegistry(); err != nil {
				return err // each step would fail with this error
			}
			var rows []warmRow
			ctx, cancel := context.WithTimeout(c.Context, fillTimeout)
			defer cancel()
			// Detach unused ENIs first, because a pod on another node may wait for one of these ENIs. Fill the pools
			// last, because the filling may take minutes.
			common, failed := conflists.Common()
			if failed == nil {
				failed = detachUnused(ctx, common)
			}
			for _, policy := range pools {
				row, err := fillPool(ctx, policy)
				rows = append(rows, row)
				failed = errors.Join(failed, err)
			}
			return errors.Join(failed, cli.Table(c, rows))
		},
	}
}

// fillTimeout is how long the command may work, for example while EC2 throttles. It is a little less than cli.Patience,
// so that the command has time to report its result.
const fillTimeout = cli.Patience - 10*time.Second

// detachUnused detaches requested ENIs that no pod uses any more. A running collection also detaches these ENIs, and
// detachUnused waits for the end of the collection. While EC2 throttles, the wait may take minutes, so detachUnused
// leaves half of fillTimeout for filling the pools.
func detachUnused(ctx context.Context, policy lease.Policy) error {
	p, err := cli.OpenPool(policy)
	if err != nil {
		return err
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(ctx, fillTimeout/2)
	defer cancel()
	if _, err = p.DetachUnused(ctx); err != nil && ctx.Err() != nil {
		err = fmt.Errorf("ENIs that no pod uses could not be detached within %v, because a collection runs or EC2 "+
			"throttles: %w. The next collection detaches these ENIs", fillTimeout/2, err)
	}
	return err
}

// A warmRow has the numbers of a pool after the command has filled the pool.
type warmRow struct {
	Pool string `json:"pool"`
	Free int    `json:"free"` // addresses that a pod could have now; a /80 counts as a million
	Min  int    `json:"min"`  // addresses to keep free: warm.min, or less if the node has nearly maxPods pods
}

// fillPool gets addresses for a pool until it has as many free addresses as its configuration wants.
func fillPool(ctx context.Context, policy lease.Policy) (warmRow, error) {
	row := warmRow{Pool: conf.PoolName(policy.Pool), Min: policy.Warm.Min}
	p, err := cli.OpenPool(policy)
	if err != nil {
		return row, err
	}
	defer p.Close()
	defer cli.Working("fill pool " + row.Pool)()
	if row.Free, err = p.Fill(ctx); err != nil {
		err = fmt.Errorf("fill pool %s: %w", row.Pool, err)
	}
	s, unread := p.Registry.View()
	if unread == nil {
		row.Min = policy.Wanted(s)
	}
	return row, errors.Join(err, unread)
}
