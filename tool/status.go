// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"io"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func status() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "Show which pod has which address; with --diff, compare registry, kernel, metadata and EC2",
		Description: `It prints the totals, and then each address: the pod that has it, or how long it
still cools (reuseIPWait of the configuration). It reads the registry. If the
configuration has egresses, it also reads the namespaces of their pods. It takes no
lock. If a process keeps a lock, the command names the process, and says how many
other processes wait for the lock.

--diff compares the registry, the kernel, the metadata service and EC2. It prints
disagreements first, each with its meaning and what to do. It changes nothing. If
the sources disagree, the exit status is 1. If EC2 or metadata does not answer, it
reports this, and compares the other sources.` + cli.JSON(`instance {id type zone enis enis_max}
    work {waiting unfinished[] {action eni since} throttled[] {action until} refused[] {action about code until}
    locks[] {lock pid program stopped waiting}}
    egress {clients routers refused}
    pools[] {pool enis leased free cooling warm_min warm_max}
    enis[] {eni iface index card pool leased free cooling prefixes state link_missed why}
    addresses[] {ip state namespace pod container ifname netns eni pool since until}
    with --diff: disagreements metadata ec2 (whether it was compared)
    findings[] {about means do harmless}
    addresses[] {ip registry kernel metadata ec2}`),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.BoolFlag{Name: "diff", Usage: "compare the registry with the kernel, the metadata service and EC2"},
		},
		Action: func(c *cli.Context) error {
			if c.Bool("diff") {
				return printDiff(c)
			}
			s, err := cli.ViewRegistry()
			if err != nil {
				return err
			}
			now, conflists := time.Now(), conf.Load(c.String("config"))
			links, err := view.ENILinks(s)
			if err != nil {
				return err
			}
			n := view.StatusOf(s, conflists.MostENIs(s), conflists.ReuseWait, conflists.Misfit, links, now)
			if n.Work.Locks, err = view.LocksOf(registry.Dir()); err != nil {
				return err
			}
			pods, unread := egressPods(conflists, s)
			n.Egress = view.EgressStatusOf(pods)
			return errors.Join(cli.Answer(c, n, func(w io.Writer) { n.Print(w, now) }), unread)
		},
	}
}

func printDiff(c *cli.Context) error {
	p, err := cli.OpenPool(lease.Policy{})
	if err != nil {
		return err
	}
	defer p.Close()
	stop := cli.Working("ask the metadata service and EC2")
	k, err := view.Compare(c.Context, p, conf.Load(c.String("config")))
	stop()
	if err != nil {
		return err
	}
	d := k.Difference()
	if err := cli.Answer(c, d, d.Print); err != nil || d.Disagreements == 0 {
		return err
	}
	return cli.Hint(errors.New(cli.Count(d.Disagreements, "disagreement")+
		" between registry, kernel, metadata and EC2"),
		"EC2 and metadata may be some minutes behind: run status --diff again before you act")
}
