// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func metrics() *cli.Command {
	return &cli.Command{
		Name:  "metrics",
		Usage: "Write the state of the node for Prometheus",
		Description: `For the textfile collector of node_exporter, by a timer:

    ` + Name + ` metrics --file /var/lib/node_exporter/textfile_collector/cni_ipvlan_vpc.prom

It reads the registry. If the configuration has egresses, it also reads the
namespaces of their pods. If it does not know a value, it leaves out the metric. All
metrics are gauges, except two that count the plugins' commands.` + cli.JSON("[] name type help samples[] {suffix labels value}"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.StringFlag{Name: "file", Usage: "write text for Prometheus to `FILE`, and nothing to standard " +
				"output; the file is always complete"},
			&cli.BoolFlag{Name: "subnets",
				Usage: "also ask EC2 for the free addresses of the subnets of this zone"},
		},
		Action: func(c *cli.Context) error {
			s, err := cli.ViewRegistry()
			if err != nil {
				return err
			}
			conflists := conf.Load(c.String("config"))
			most := view.Most{ENIs: conflists.MostENIs(s), Assigns: conflists.Assigns()}
			all := view.Metrics(s, most, conflists.ReuseWait, conflists.Wanted(s), time.Now())
			commands, err := registry.Counts(registry.Dir())
			all = append(all, view.CommandMetrics(commands)...)
			pods, failed := egressPods(conflists, s)
			if failed = errors.Join(failed, err); pods != nil {
				all = append(all, view.EgressMetrics(pods)...)
			}
			if c.Bool("subnets") {
				free, err := subnetMetric(c, s)
				failed = errors.Join(failed, err)
				all = append(all, free)
			}
			all = view.Written(all)
			if file := c.String("file"); file != "" {
				return errors.Join(failed, writeMetrics(c, file, all))
			}
			return errors.Join(failed, cli.Answer(c, all, func(w io.Writer) { view.Expose(w, all) }))
		},
	}
}

// writeMetrics writes the metrics to a file that all users may read. It replaces a regular file as a whole, so that
// node_exporter never reads a half-written file.
func writeMetrics(c *cli.Context, file string, all []view.Metric) error {
	r, err := registry.Open(registry.Dir())
	if err != nil {
		return cli.Rooted(err)
	}
	unlock, err := r.Lock(c.Context, "metrics")
	if err != nil {
		return cli.Rooted(err)
	}
	defer unlock()
	var b bytes.Buffer
	view.Expose(&b, all)
	return cli.Rooted(cli.WriteFile(file, b.Bytes(), 0o644))
}

// subnetMetric asks EC2 for the subnets in the zone of this node. It returns a metric with the number of free addresses
// of each subnet.
func subnetMetric(c *cli.Context, s *registry.State) (view.Metric, error) {
	m := view.Metric{Name: "subnet_free_addresses",
		Help: "Free IPv4 addresses of a subnet in this node's zone, as EC2 reports them."}
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
			m.Add(float64(n.Free), "subnet", n.ID)
		}
	}
	return m, nil
}
