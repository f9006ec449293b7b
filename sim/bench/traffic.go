// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A route is a destination for the traffic of the pod "a".
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
	{"Service, other node", true, func(*pair) netip.AddrPort { return netip.AddrPortFrom(clusterIP, clusterPort) }},
	{"Service, same node", true, func(*pair) netip.AddrPort { return netip.AddrPortFrom(clusterIP, clusterPort+1) }},
}

// A flow is one load on one route of one layout. The field "costs" has the average cost of an operation in each round.
type flow struct {
	pair  *pair
	route route
	load  load
	costs []time.Duration
}

// measureTraffic measures what the pods' packets cost in each layout, and prints the costs.
func measureTraffic(ctx context.Context, o options, w io.Writer) error {
	fs := &flows{reference: ours, budgets: budgets}
	return fs.run(ctx, o, w, func(ctx context.Context, f *vpcsim.Fabric) error {
		for i, l := range layouts {
			p, err := l.newPair(f, i, o.bin)
			if err == nil {
				err = fs.addFlows(ctx, p, routes, p.b, p.c)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
		}
		return nil
	})
}

// flows are the flows that one run measures.
type flows struct {
	all     []*flow
	servers []func() // each waits until a server has ended

	reference      string // the layout whose costs are the divisors of the ratios
	referenceRoute string // the route whose costs are the divisors of the ratios; empty: each row's own route
	budgets        []budget
	noteColumn     string // the name of the column with pair.note; empty: no column
}

// run measures the flows of several layouts, and prints their costs. build must make the layouts and add their flows.
// run fails if a flow exceeds a budget, but only if the figures are counted instructions.
func (fs *flows) run(
	ctx context.Context, o options, w io.Writer, build func(context.Context, *vpcsim.Fabric) error,
) (err error) {
	f, err := vpcsim.New(ec2sim.World("vpc-1 10.0.0.0/16\nsubnet-1 " + subnet.String()))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop() // stops the servers
		for _, wait := range fs.servers {
			wait()
		}
		err = errors.Join(err, f.Close())
	}()
	if err := build(ctx, f); err != nil {
		return err
	}
	if err := fs.measureFlows(ctx, o.rounds); err != nil {
		return err
	}
	unit := "microseconds"
	if o.icount {
		unit = instructions
	}
	figures := fmt.Sprintf("%s, the lowest of %d rounds; spread: by how much the highest is above the lowest", unit,
		o.rounds)
	if _, err := fmt.Fprintf(w, "%s\n%s", title(figures, fs.reference), fs.table()); err != nil || !o.icount {
		return err
	}
	return fs.checkBudgets()
}

func (fs *flows) addFlows(ctx context.Context, p *pair, routes []route, servers ...*guest) error {
	for _, g := range servers {
		wait, err := g.startServer(ctx)
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

// measureFlows measures each flow once per round. The order changes from round to round.
func (fs *flows) measureFlows(ctx context.Context, rounds int) error {
	for round := range rounds + 1 {
		for i := range fs.all {
			fl := fs.all[(i+round)%len(fs.all)]
			took, err := fl.measureOperation(ctx)
			if err != nil {
				return fmt.Errorf("%s, %s, %s: %w", fl.pair.name, fl.route.name, fl.load.name, err)
			}
			if round > 0 { // the first round fills the caches
				fl.costs = append(fl.costs, took)
			}
		}
	}
	return nil
}

// measureOperation runs the load in the pod "a", and returns the average cost of one operation.
func (fl *flow) measureOperation(ctx context.Context) (time.Duration, error) {
	out, err := fl.pair.a.output(ctx, fl.load.name, fl.route.to(fl.pair).String(), strconv.Itoa(fl.load.ops))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64)
	return time.Duration(ns) / time.Duration(fl.load.ops), err
}

// generatorCommand returns a command that runs this program as a generator of traffic.
func generatorCommand(ctx context.Context, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "/proc/self/exe", append([]string{generateArg}, args...)...)
	c.Env = append(os.Environ(), "GOMAXPROCS=1", "GOGC=off", "GODEBUG=asyncpreemptoff=1")
	return c
}

func (g *guest) output(ctx context.Context, args ...string) (out string, err error) {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	err = g.Do(func() error {
		c := generatorCommand(ctx, args...)
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

// startServer starts a server in the pod. The server ends when ctx is done. wait returns when the server has ended.
func (g *guest) startServer(ctx context.Context) (wait func(), err error) {
	err = g.Do(func() error {
		c := generatorCommand(ctx, "serve")
		out, err := c.StdoutPipe()
		if err != nil {
			return err
		}
		if err := c.Start(); err != nil {
			return err
		}
		wait = func() { _ = c.Wait() }
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			return fmt.Errorf("no line from the load server, only %q: %w", line, err)
		}
		return nil
	})
	return wait, err
}

// table returns a table with a row for each layout and route. For each load, the row has the lowest cost, and the ratio
// of this lowest cost to the lowest cost of the reference. Higher costs can include periodic work that the VM's kernel
// does for all pods.
func (fs *flows) table() table.Table {
	t := table.Table{{"layout", "route"}}
	if fs.noteColumn != "" {
		t[0] = append(t[0], fs.noteColumn)
	}
	for _, l := range loads {
		t[0] = append(t[0], l.name, "spread", "x")
	}
	for _, fl := range fs.all {
		if fl.load.name != loads[0].name {
			continue // one row has all loads of a route
		}
		row := []string{fl.pair.name, fl.route.name}
		if fs.noteColumn != "" {
			row = append(row, fl.pair.note)
		}
		for _, l := range loads {
			took, than := fs.sortedCosts(fl.pair.name, fl.route.name, l), fs.sortedCosts(fs.reference,
				cmp.Or(fs.referenceRoute, fl.route.name), l)
			spread := float64(took[len(took)-1]-took[0]) / float64(cmp.Or(took[0], 1))
			row = append(row, preciseText(took[0]), fmt.Sprintf("%.1f%%", 100*spread), ratio(took[0], than[0]))
		}
		t = append(t, row)
	}
	return t
}

func (fs *flows) sortedCosts(layout, route string, l load) []time.Duration {
	i := slices.IndexFunc(fs.all, func(fl *flow) bool {
		return fl.pair.name == layout && fl.route.name == route && fl.load.name == l.name
	})
	took := slices.Clone(fs.all[i].costs)
	slices.Sort(took)
	return took
}

// preciseText formats a duration in microseconds. With -icount, this is the number of instructions in thousands.
func preciseText(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Microsecond), 'f', 1, 64)
}
