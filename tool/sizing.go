// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/api"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

func sizing() *cli.Command {
	return &cli.Command{
		Name:  "sizing",
		Usage: "Count pods, addresses and EC2 calls of nodes with an instance type",
		Description: `A row for each instance type:

    enis, each   ENIs for pods, and how many pods each can serve
    pods         what maxpods prints for the type, with the same limits
    warm         free addresses that the pools keep: the sum of warm.min
    cooling      addresses that cool if --churn pods of a node end in a minute
    used         ENIs that a node needs for --pods pods, warm and cooling addresses
    addresses    IPv4 addresses that all --nodes take from the subnets for pods. This
                 includes the primary addresses of the ENIs for pods, and addresses
                 for a quarter more pods on a new ENI. It excludes the boot ENIs,
                 which are in subnets of their own
    calls        EC2 calls that change something, with which a node gets its ENIs
    at_once      nodes that can start together without EC2's throttling
    per_minute   nodes that can start in each further minute
    seconds      until EC2 has answered the last call if all --nodes start at once

All nodes of all clusters of an account share EC2's limits in a region. The command
uses EC2's defaults: your account may have other limits. With "provision": "none" or
"assign", a node creates no ENI. Then calls, at_once, per_minute and seconds are 0,
and EC2's limits do not matter.` +
			cli.JSON("[] type enis each pods warm cooling used addresses calls at_once per_minute seconds"),
		Flags: sizingFlags(),
		Action: func(c *cli.Context) error {
			kinds := c.StringSlice("types")
			if len(kinds) == 0 {
				return cli.Misuse(c, "--types: want at least one instance type")
			}
			n, err := nodeOf(c)
			if err != nil {
				return err
			}
			for _, name := range []string{"nodes", "pods", "churn"} {
				if c.Int(name) < 0 {
					return cli.Misuse(c, "--%s %d: want 0 or more", name, c.Int(name))
				}
			}
			var rows []sizingRow
			for _, kind := range kinds {
				n.kind = strings.TrimSpace(kind)
				row, err := n.sizingRow(c)
				if err != nil {
					return fmt.Errorf("%s: %w", n.kind, err)
				}
				rows = append(rows, row)
			}
			return cli.Table(c, rows)
		},
	}
}

// sizingFlags returns the flags of the command sizing. These are the flags of maxpods except --format and
// --instance-type, and further flags for the numbers of nodes and pods.
func sizingFlags() []cli.Flag {
	var flags []cli.Flag
	for _, f := range maxPods().Flags {
		if name := f.Names()[0]; name != "format" && name != "instance-type" {
			flags = append(flags, f)
		}
	}
	return append(flags,
		&cli.StringSliceFlag{Name: "types", Usage: "the instance types, as `TYPE,TYPE`"},
		&cli.IntFlag{Name: "nodes", Value: 1, Usage: "count `N` nodes of each type"},
		&cli.IntFlag{Name: "pods", DefaultText: "as many as it can have", Usage: "a node runs `N` pods"},
		&cli.IntFlag{Name: "churn", Usage: "in each minute, `N` pods of a node end, and others start"})
}

// A sizingRow has the numbers for an instance type. The help of sizing explains them.
type sizingRow struct {
	Type      string `json:"type"`
	ENIs      int    `json:"enis"`
	Each      int    `json:"each"`
	Pods      int    `json:"pods"`
	Warm      int    `json:"warm"`
	Cooling   int    `json:"cooling"`
	Used      int    `json:"used"`
	Addrs     int    `json:"addresses"`
	Calls     int    `json:"calls"`
	AtOnce    int    `json:"at_once"`
	PerMinute int    `json:"per_minute"`
	Seconds   int    `json:"seconds"`
}

// sizingRow returns the row for the instance type of the node n.
func (n podNode) sizingRow(c *cli.Context) (sizingRow, error) {
	row := sizingRow{Type: n.kind}
	l, err := n.limits(c)
	if err != nil {
		return row, err
	}
	if row.Pods, err = n.podCount(c); err != nil {
		return row, err
	}
	var reuse time.Duration
	for _, p := range n.pools {
		row.Warm += p.Warm.Min
		reuse = max(reuse, p.ReuseWait)
	}
	row.Cooling = int(math.Ceil(float64(c.Int("churn")) * reuse.Minutes()))
	run := row.Pods
	if c.IsSet("pods") {
		run = min(run, c.Int("pods"))
	}
	n.setNeeds(&row, l, run+row.Warm+row.Cooling, c.Int("nodes"))
	if n.pools[0].Provision == lease.ProvisionFull {
		row.setCalls(c.Int("nodes"))
	}
	return row, nil
}

// setNeeds sets the row's numbers of ENIs and addresses. wanted is the number of leased, warm and cooling addresses of
// each of the nodes.
func (n podNode) setNeeds(row *sizingRow, l aws.Limits, wanted, nodes int) {
	boot := n.podsExcept(l, math.MaxInt) // pods that the boot ENI serves: more than 0 if interfaceIndex is 0
	most := 0                            // ENIs that the instance can have for pods, without the boot ENI
	for n.podsExcept(l, most) > boot {
		most++
	}
	with := func(enis int) int { return n.podsExcept(l, most-enis) }
	if row.ENIs = max(most-n.except, 0); row.ENIs > 0 {
		row.Each = with(1) - boot
	}
	if row.Each >= lease.Plenty { // IPv6 addresses do not limit pods
		row.Each = row.Pods
	}
	wanted = min(wanted, with(row.ENIs))
	for row.Used < row.ENIs && with(row.Used) < wanted {
		row.Used++
	}
	// For a new ENI, a node asks for more addresses than it needs: one spare address for each 4 addresses. A /28 has 16
	// addresses.
	const block, spare = 16, 4
	one := min(wanted+(wanted+spare-1)/spare, with(row.Used))
	if n.pools[0].Prefixes && !l.NoPrefixes {
		one = row.Used + (max(0, one-row.Used)+block-1)/block*block
	}
	row.Addrs = nodes * max(one, row.Used)
}

// podsExcept returns the number of pods that an instance can have if the given number of its ENIs is not for pods.
func (n podNode) podsExcept(l aws.Limits, enis int) int {
	var families []lease.Family
	for _, p := range n.pools {
		families = append(families, p.Families...)
	}
	return more.Pods(more.Launched(l, families), n.pools, enis)
}

// setCalls sets the row's fields about EC2 calls of nodes that all start at the same time. EC2 has a limit for each
// action. The action that reaches its limit first determines how many nodes can start.
func (row *sizingRow) setCalls(nodes int) {
	asked := map[string]int{ // the calls of one node: for its ENIs, and for one collection
		"DescribeNetworkInterfaces": 1 + row.Used, "DescribeSubnets": 1, "DescribeInstanceTypes": 1,
	}
	for _, a := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute"} {
		asked[a] = row.Used
		row.Calls += row.Used
	}
	row.AtOnce, row.PerMinute = math.MaxInt, math.MaxInt
	for action, calls := range asked {
		b := api.BucketOf(action)
		if calls == 0 {
			continue
		}
		row.AtOnce = min(row.AtOnce, b.Size/calls)
		row.PerMinute = min(row.PerMinute, b.Refill*60/calls)
		row.Seconds = max(row.Seconds, int(math.Ceil(float64(nodes*calls-b.Size)/float64(b.Refill))))
	}
}
