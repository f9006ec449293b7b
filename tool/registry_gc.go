// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

func registryGC() *cli.Command {
	return &cli.Command{
		Name:  "registry-gc",
		Usage: "Free all IPs that have remained unused for a given time interval",
		Description: `For a systemd timer:

    ` + Name + ` registry-gc --free-after=15m

It unassigns addresses that have been free for --free-after, and no longer cool
(reuseIPWait of the configuration). If a pod has ended without a DEL, it ends the
lease of the pod, and deletes the rules of the pod. It deletes empty ENIs that the
plugins have created. If pods get routes to the peers of the VPC, it asks EC2 for
the peers once an hour. It prints no answer. If it could not do all of its work, the
exit status is 1, and the next run continues. If a configuration has a mistake, the
command releases nothing. If there is no configuration, it keeps what the last
configuration wanted (warm, skipDeallocation), and addresses cool for a minute.

It only collects. If the node has lost a part of its pods' network, the command
repair puts this part back, so cni-gc.service runs repair first. Your own timer must
run both commands.` +
			cli.JSON("deleted ended prefixes rules unassigned"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.DurationFlag{
				Name: "free-after", DefaultText: "none",
				Usage: "release addresses that have been free for this `TIME`; up to 15 % is added, so that nodes do " +
					"not call EC2 together",
			},
			&cli.IntFlag{Name: "max-reap", Value: -1,
				Usage: "unassign at most `N` addresses, and delete no ENI; -1: no limit, and delete ENIs, too"},
		},
		Action: func(c *cli.Context) error {
			after := c.Duration("free-after")
			if after <= 0 {
				return cli.Misuse(c, "invalid duration %v: --free-after must be more than 0", after)
			}
			want := less.Collection{FreeAfter: after + jitter(after), Max: c.Int("max-reap")}
			conflists := conf.Load(c.String("config"))
			policy, unread := conflists.Common()
			if unread != nil { // change nothing in EC2: the unread configuration may forbid changes
				policy.Provision, policy.Changes, want.Max = lease.ProvisionNone, true, 0
				unread = fmt.Errorf("this collection has released nothing, because it cannot read the "+
					"configuration: %w", unread)
			}
			p, err := cli.OpenPool(policy)
			if err != nil {
				return err
			}
			defer p.Close()
			stop := cli.Working("collect")
			done, rules, failed := runCollection(c, p, conflists, want)
			failed = errors.Join(failed, unread)
			stop()
			if len(done.Unassigned)+len(done.Returned)+len(done.Deleted)+len(done.Ended)+len(rules) > 0 {
				slog.Info("collected", "unassigned_addresses", len(done.Unassigned), "deleted_enis", len(done.Deleted),
					"ended_leases", len(done.Ended), "released_prefixes", len(done.Returned),
					"deleted_rules", len(rules))
			}
			return errors.Join(failed, cli.Answer(c, map[string]any{
				"unassigned": cli.List(done.Unassigned), "prefixes": cli.List(done.Returned),
				"deleted": cli.List(done.Deleted),
				"ended":   cli.List(done.Ended), "rules": ruleTexts(rules),
			}, func(io.Writer) {}))
		},
	}
}

// runCollection does a whole collection. It returns the report, and the rules that it has deleted. If no part has
// failed, it records that the collection is complete.
func runCollection(
	c *cli.Context, p *ipam.Pool, conflists *conf.Conflists, want less.Collection,
) (less.Report, []nl.Rule, error) {
	want.ReuseWait = conflists.ReuseWait
	if conflists.IsDir { // a single file does not show which pools other files have
		want.Conflists = conflists.Whole()
	}
	done, failed := p.Collect(c.Context, want)
	rules, err1 := ptp.RemoveDetached(p.Host)
	gone, err2 := ptp.RemoveGone(p.Host)
	failed = errors.Join(failed, err1, err2)
	if done.Tidied || len(gone) > 0 {
		// The collection has removed objects that serve several pods, because it found no pod that needs them. A pod
		// that started meanwhile may need them, and must not wait for a later run.
		_, err := repair.Node(c.Context, conflists)
		failed = errors.Join(failed, err)
	}
	if failed == nil {
		failed = view.MarkCollected()
	}
	return done, append(rules, rulesOf(gone)...), failed
}

func rulesOf(w nl.Wiring) (rules []nl.Rule) {
	for _, step := range w {
		if r, is := step.Object.(nl.Rule); is {
			rules = append(rules, r)
		}
	}
	return rules
}

// ruleTexts returns the rules in the syntax of ip(8).
func ruleTexts(rules []nl.Rule) []string {
	text := []string{}
	for _, r := range rules {
		text = append(text, r.String())
	}
	return text
}

// jitter returns a random part of d, up to 15 %, so that nodes do not call EC2 at the same time. The sum of d and the
// result does not overflow.
func jitter(d time.Duration) time.Duration { return min(rand.N(d/100*15+1), math.MaxInt64-d) }
