// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/bench/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/vpcsim"
)

// A route is a path for traffic from pod a.
type route struct {
	name    string
	service bool
	to      func(*pair) netip.AddrPort
}

const (
	otherNode = "pod, other node"
	sameNode  = "pod, same node"
)

var routes = []route{
	{otherNode, false, func(p *pair) netip.AddrPort { return netip.AddrPortFrom(p.b.addr, loadPort) }},
	{sameNode, false, func(p *pair) netip.AddrPort { return netip.AddrPortFrom(p.c.addr, loadPort) }},
	{"Service, other node", true, func(*pair) netip.AddrPort { return netip.AddrPortFrom(cluster, clusterPort) }},
	{"Service, same node", true, func(*pair) netip.AddrPort { return netip.AddrPortFrom(cluster, clusterPort+1) }},
}

// A flow is one load on one route of one layout, with the cost of an operation in each round.
type flow struct {
	pair  *pair
	route route
	load  load
	took  []time.Duration
}

// traffic measures the cost of the pods' packets, by layout, and prints it. With counted instructions it fails if a
// budget is exceeded. Measured times vary too much for that.
func traffic(ctx context.Context, o options, w io.Writer) (err error) {
	f, err := vpcsim.New(ec2sim.Config{
		VPCs:    []ec2sim.VPC{{ID: "vpc-1", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}},
		Subnets: []ec2sim.Subnet{{ID: "subnet-1", VPC: "vpc-1", Zone: "us-east-1a", CIDR: subnet}},
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	fs := &flows{}
	defer func() {
		stop() // stops the servers
		for _, wait := range fs.servers {
			wait()
		}
		err = errors.Join(err, f.Close())
	}()
	for i, l := range layouts {
		p, err := l.build(f, i, o.bin)
		if err == nil {
			err = fs.add(ctx, p)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", l.name, err)
		}
	}
	if err := fs.measure(ctx, o.rounds); err != nil {
		return err
	}
	unit := "microseconds"
	if o.icount {
		unit = instructions
	}
	if _, err := fmt.Fprintf(w, "%s\n%s", title(unit, o.rounds, ours), fs.table()); err != nil || !o.icount {
		return err
	}
	return fs.kept()
}

type flows struct {
	all     []*flow
	servers []func() // wait for the servers to end
}

// add starts the servers of a layout and lists its flows.
func (fs *flows) add(ctx context.Context, p *pair) error {
	for _, g := range []*guest{p.b, p.c} {
		wait, err := g.serve(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", g.name, err)
		}
		fs.servers = append(fs.servers, wait)
	}
	for _, r := range routes {
		for _, l := range loads {
			if p.service || !r.service {
				fs.all = append(fs.all, &flow{pair: p, route: r, load: l})
			}
		}
	}
	return nil
}

// measure runs each flow once per round, in an order that changes from round to round.
func (fs *flows) measure(ctx context.Context, rounds int) error {
	for round := range rounds + 1 {
		for i := range fs.all {
			fl := fs.all[(i+round)%len(fs.all)]
			took, err := fl.measure(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s, %s: %w", fl.pair.name, fl.route.name, fl.load.name, err)
			}
			if round > 0 { // the first round fills the caches
				fl.took = append(fl.took, took)
			}
		}
	}
	return nil
}

// measure starts one process in pod a that makes the load, and returns the cost of an operation.
func (fl *flow) measure(ctx context.Context) (time.Duration, error) {
	out, err := fl.pair.a.output(ctx, fl.load.name, fl.route.to(fl.pair).String(), strconv.Itoa(fl.load.ops))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	return time.Duration(ns) / time.Duration(fl.load.ops), err
}

// generator is this program with the argument generate.
func generator(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe", append([]string{generateArg}, args...)...)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	return c
}

func (g *guest) output(ctx context.Context, args ...string) (out string, err error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	err = g.Do(func() error {
		c := generator(ctx, args...)
		var stdout, stderr bytes.Buffer
		c.Stdout, c.Stderr = &stdout, &stderr
		if err := c.Run(); err != nil {
			return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
		}
		out = stdout.String()
		return nil
	})
	return out, err
}

// serve starts a server in the pod that ends with ctx. The function wait returns when it has ended.
func (g *guest) serve(ctx context.Context) (wait func(), err error) {
	err = g.Do(func() error {
		c := generator(ctx, "serve")
		out, err := c.StdoutPipe()
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		wait = func() { _ = c.Wait() }
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return fmt.Errorf("the server says %q: %w", line, err)
		}
		return nil
	})
	return wait, err
}

// chained creates our pods with a service loop: by our plugins, without ipam, which needs EC2.
func chained(loop string) func(*host, *guest) error {
	return func(h *host, g *guest) error { return execChain(h, g, loop) }
}

func execChain(h *host, g *guest, loop string) error {
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "traffic", "master": "eth1",
		"hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true, "serviceLoop": loop,
		"prevResult": map[string]any{
			"cniVersion": "1.0.0",
			"interfaces": []any{map[string]any{"name": "eth1"}},
			"ips":        []any{map[string]any{"address": inSubnet(g.addr).String(), "gateway": router.String(), "interface": 0}},
			"routes":     []any{map[string]any{"dst": "10.0.0.0/16", "gw": router.String()}},
		},
	}
	for _, plugin := range []string{"cni-ipvlan-vpc-k8s-ipvlan", "cni-ipvlan-vpc-k8s-unnumbered-ptp"} {
		stdin, err := json.Marshal(conf)
		if err != nil {
			return err
		}
		var out bytes.Buffer
		err = h.Do(func() error {
			c := exec.Command(filepath.Join(h.bin, plugin))
			c.Env = append(os.Environ(), "CNI_COMMAND=ADD", "CNI_CONTAINERID="+g.name, "CNI_NETNS="+g.Path, "CNI_IFNAME=eth0", "CNI_PATH="+h.bin)
			c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &out, os.Stderr
			return c.Run()
		})
		if err != nil {
			return fmt.Errorf("%s: %w: %s", plugin, err, out.Bytes())
		}
		conf["prevResult"] = json.RawMessage(out.Bytes())
	}
	return nil
}

// table has a row for each layout and route, with the cost of each load and its ratio to our chain.
func (fs *flows) table() table.Table {
	t := table.Table{{"layout", "route"}}
	for _, l := range loads {
		t[0] = append(t[0], l.name, "spread", "x")
	}
	for _, fl := range fs.all {
		if fl.load.name != loads[0].name {
			continue // one row has all loads of a route
		}
		row := []string{fl.pair.name, fl.route.name}
		for _, l := range loads {
			took, ours := fs.took(fl.pair.name, fl.route.name, l), fs.took(ours, fl.route.name, l)
			spread := float64(took[len(took)-1]-took[0]) / float64(cmp.Or(quantile(took, 0.5), 1))
			row = append(row, fine(quantile(took, 0.5)), fmt.Sprintf("%.1f%%", 100*spread), ratio(quantile(took, 0.5), quantile(ours, 0.5)))
		}
		t = append(t, row)
	}
	return t
}

// took returns the costs of a flow, sorted.
func (fs *flows) took(layout, route string, l load) []time.Duration {
	i := slices.IndexFunc(fs.all, func(fl *flow) bool {
		return fl.pair.name == layout && fl.route.name == route && fl.load.name == l.name
	})
	took := slices.Clone(fs.all[i].took)
	slices.Sort(took)
	return took
}

// fine formats a duration in microseconds, or in thousands of instructions: an instruction is a nanosecond of that
// clock.
func fine(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Microsecond), 'f', 1, 64)
}
