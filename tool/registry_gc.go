// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func registryGC() *cli.Command {
	return &cli.Command{
		Name:  "registry-gc",
		Usage: "Free all IPs that have remained unused for a given time interval",
		Description: `For a systemd timer:

    ` + Name + ` registry-gc --free-after=15m

It unassigns addresses that have been free for so long, ends the leases of
pods that have gone without a DEL, and deletes ENIs that the ipam plugin has
made and that are empty. It also deletes the rules of veths that are no more,
which a pod leaves that ended without a DEL. It answers nothing. If it could not do all of it,
the exit status is 1, and the next run takes it up.

Before all this it looks whether the node still has what serves all its pods:
the table of nftables, the rules and sysctls that the next ADD would see to.
What a firewall that was restarted has flushed it puts back, and says so.`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.DurationFlag{
				Name: "free-after", DefaultText: "none",
				Usage: "give back what has been free for this `TIME`; up to 15 % is added, so that nodes do not call EC2 together",
			},
			&cli.IntFlag{Name: "max-reap", Value: -1, Usage: "unassign `N` addresses at most, and delete no ENI; -1: all, 0: none"},
		},
		Action: func(c *cli.Context) error {
			after := c.Duration("free-after")
			if after <= 0 {
				return misuse(c, "invalid duration %v: --free-after must be more than 0", after)
			}
			if err := needRoot(); err != nil {
				return err
			}
			mended, err := mendNode(c.String("config"))
			if err != nil { // in the way of nothing
				slog.Warn("look after what serves all pods", "error", err)
			}
			p, err := openPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := working("collect")
			done := ipam.Collection{FreeAfter: after + jitter(after), Max: c.Int("max-reap")}
			failed := p.Collect(c.Context, &done)
			rules, err := p.Host.RemoveDetached()
			failed = errors.Join(failed, err)
			if failed == nil {
				failed = markCollected()
			}
			stop()
			if len(done.Unassigned)+len(done.Returned)+len(done.Deleted)+len(done.Ended)+len(rules) > 0 {
				slog.Info("gave back", "unassigned", len(done.Unassigned), "deleted", len(done.Deleted), "ended", len(done.Ended),
					"prefixes", len(done.Returned), "rules", len(rules))
			}
			return errors.Join(failed, answer(c, map[string]any{
				"unassigned": list(done.Unassigned), "prefixes": list(done.Returned), "deleted": list(done.Deleted),
				"ended": list(done.Ended), "rules": texts(rules), "mended": mended,
			}, func(io.Writer) {}))
		},
	}
}

// collectedMark is the file whose time tells when a collection has last done all that it
// had to do.
const collectedMark = "collected"

func markCollected() error {
	return os.WriteFile(filepath.Join(registry.Dir(), collectedMark), nil, 0o600)
}

// texts are the rules as ip(8) would add them.
func texts(rules []nl.Rule) []string {
	text := []string{}
	for _, r := range rules {
		text = append(text, r.String())
	}
	return text
}

// jitter is up to 15 % of d.
func jitter(d time.Duration) time.Duration { return rand.N(d*15/100 + 1) }

// openPool opens the pool of this node for a command that needs root.
func openPool(policy lease.Policy) (*ipam.Pool, error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	return ipam.Open(policy)
}
