// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

func metrics() *cli.Command {
	return &cli.Command{
		Name:  "metrics",
		Usage: "Write the state of the node for Prometheus",
		Description: `For the textfile collector of node_exporter, by a timer:

    ` + Name + ` metrics --file /var/lib/node_exporter/cni-ipvlan-vpc.prom

It reads the registry alone. All are gauges; what is not known is left out.`,
		Flags: []cli.Flag{
			configFlag(),
			&cli.StringFlag{Name: "file", Usage: "write to `FILE`, whole or not at all, and not to standard output"},
			&cli.BoolFlag{Name: "subnets", Usage: "ask EC2, too, how many addresses the subnets of this zone have free"},
		},
		Action: func(c *cli.Context) error {
			s, err := viewRegistry()
			if err != nil {
				return err
			}
			all := nodeMetrics(s, reuseWaits(c), time.Now())
			var failed error
			if c.Bool("subnets") {
				var free metric
				free, failed = subnetMetric(c, s)
				all = append(all, free)
			}
			all = written(all)
			if file := c.String("file"); file != "" {
				return errors.Join(failed, writeMetrics(c, file, all))
			}
			return errors.Join(failed, answer(c, all, func(w io.Writer) { expose(w, all) }))
		},
	}
}

// writeMetrics replaces the file, which everybody may read. The collector must not see
// half of it.
func writeMetrics(c *cli.Context, file string, all []metric) error {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return rooted(err)
	}
	unlock, err := r.Lock(c.Context, "metrics")
	if err != nil {
		return rooted(err)
	}
	defer unlock()
	var b bytes.Buffer
	expose(&b, all)
	return rooted(replaceFile(file, b.Bytes(), 0o644))
}

// subnetMetric asks EC2 for the free addresses of the subnets in this zone.
func subnetMetric(c *cli.Context, s *registry.State) (metric, error) {
	m := metric{Name: "subnet_free_addresses", Help: "Free IPv4 addresses of a subnet of this node's zone, as EC2 says."}
	cloud := aws.New(aws.Options{})
	i, err := cloud.Instance(c.Context)
	if err != nil {
		return m, err
	}
	vpcs := map[string]bool{}
	for _, e := range s.ENIs {
		vpcs[e.VPC] = true
	}
	for vpc := range vpcs {
		subnets, err := cloud.Subnets(c.Context, vpc, i.Zone)
		if err != nil {
			return m, err
		}
		for _, n := range subnets {
			m.add(float64(n.Free), "subnet", n.ID)
		}
	}
	return m, nil
}
