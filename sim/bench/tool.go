// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// commands are the commands of the tool that timers execute on each node.
var commands = [][]string{{"registry-gc", "--free-after", "15m"}, {"status"}, {"metrics"}}

// An upkeep is the cost of a node with some pods, without the cost of their ADDs and DELs.
type upkeep struct {
	pods     int
	size     int64         // of the registry, in bytes
	change   time.Duration // how long a change of the registry holds its lock
	commands []cost        // in the order of the list commands
}

// upkeep measures a node with pods of a chain. Meanwhile the node has one more pod.
func (n *node) upkeep(ctx context.Context, c *chain, before int) (u upkeep, err error) {
	ps, err := n.newPods(1)
	if err != nil {
		return u, err
	}
	if err := c.each(ctx, "ADD", ps); err != nil {
		return u, err
	}
	u.pods = before + 1
	if u.size, u.change, err = n.lockTime(ctx); err != nil {
		return u, err
	}
	file := filepath.Join(n.dir, "chain.conflist")
	if err := os.WriteFile(file, c.list.Bytes, 0o600); err != nil {
		return u, err
	}
	for _, args := range commands {
		cost, err := n.tool(ctx, c, append(slices.Clone(args), "--config", file))
		if err != nil {
			return u, err
		}
		u.commands = append(u.commands, cost)
	}
	return u, c.each(ctx, "DEL", ps)
}

// samples is the number of measurements of each cost of the upkeep. Their median counts.
const samples = 5

// lockTime returns the size of the node's registry, and how long a change holds its lock. Each change reads and writes
// the whole file.
func (n *node) lockTime(ctx context.Context) (size int64, change time.Duration, err error) {
	dir := filepath.Join(n.dir, "run")
	r, err := registry.Open(dir)
	if err != nil {
		return 0, 0, err
	}
	// A plugin never collects garbage. This process also has the garbage of the simulated cloud, and its collection
	// takes longer than a change.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var times []time.Duration
	for range samples {
		start := time.Now()
		if err := r.Change(ctx, func(*registry.State) {}); err != nil {
			return 0, 0, err
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	fi, err := os.Stat(filepath.Join(dir, "registry.json"))
	if err != nil {
		return 0, 0, err
	}
	return fi.Size(), quantile(times, 0.5), nil
}

// tool executes a command of the tool on the node.
func (n *node) tool(ctx context.Context, c *chain, args []string) (cost, error) {
	const name = "cni-ipvlan-vpc-k8s-tool"
	var all []sample
	for range samples {
		e := &executor{env: n.env}
		path, err := e.FindInPath(name, c.path)
		if err != nil {
			return cost{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		err = n.Do(func() error {
			_, err := e.exec(exec.CommandContext(ctx, path, args...), nil, os.Environ())
			return err
		})
		cancel()
		if err != nil {
			return cost{}, err
		}
		all = append(all, sample{cost: e.steps[0].cost})
	}
	return median(all), nil
}

// kept returns a table of the upkeep of nodes.
func (r *report) kept() table.Table {
	if len(r.upkeeps) == 0 {
		return nil
	}
	t := table.Table{{"upkeep"}}
	for _, u := range r.upkeeps {
		t[0] = append(t[0], fmt.Sprintf("pods: %d", u.pods), "CPU")
	}
	size, change := []string{"bytes of the registry"}, []string{"a change of the registry, under its lock"}
	for _, u := range r.upkeeps {
		size, change = append(size, strconv.FormatInt(u.size, 10), ""), append(change, r.number(u.change), "")
	}
	t = append(t, size, change)
	for i, args := range commands {
		row := []string{"cni-tool " + args[0]}
		for _, u := range r.upkeeps {
			row = append(row, r.number(u.commands[i].wall), r.number(u.commands[i].cpu))
		}
		t = append(t, row)
	}
	return t
}
