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

// timerCommands are the arguments with which a node executes the tool regularly.
var timerCommands = [][]string{{"registry-gc", "--free-after", "15m"}, {"status"}, {"metrics"}}

// An upkeep has the costs of a node that do not come from ADDs and DELs.
type upkeep struct {
	pods     int
	size     int64         // size of the registry in bytes
	change   time.Duration // how long a change of the registry holds the lock
	commands []cost        // the cost of each of the timerCommands
}

// measureUpkeep measures the upkeep of a node that has otherPods pods of a chain. During the measurement, the node has
// one more pod.
func (n *node) measureUpkeep(ctx context.Context, c *chain, otherPods int) (u upkeep, err error) {
	ps, err := n.newPods(1)
	if err != nil {
		return u, err
	}
	if err := c.execEach(ctx, "ADD", ps); err != nil {
		return u, err
	}
	u.pods = otherPods + 1
	if u.size, u.change, err = n.lockTime(ctx); err != nil {
		return u, err
	}
	file := filepath.Join(n.dir, "chain.conflist")
	if err := os.WriteFile(file, c.list.Bytes, 0o600); err != nil {
		return u, err
	}
	for _, args := range timerCommands {
		cost, err := n.runTool(ctx, c, append(slices.Clone(args), "--config", file))
		if err != nil {
			return u, err
		}
		u.commands = append(u.commands, cost)
	}
	return u, c.execEach(ctx, "DEL", ps)
}

// samplesPerCost is how often bench measures each cost of an upkeep. bench uses the median.
const samplesPerCost = 5

// lockTime returns the size of the node's registry, and how long one change of the registry holds its lock.
func (n *node) lockTime(ctx context.Context) (size int64, change time.Duration, err error) {
	dir := filepath.Join(n.dir, "run")
	r, err := registry.Open(dir)
	if err != nil {
		return 0, 0, err
	}
	// Measure without garbage collection. A plugin exits before its first garbage collection, but this process would
	// also collect the garbage of the simulated cloud.
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var times []time.Duration
	for range samplesPerCost {
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

// runTool executes a command of the tool on the node several times, and returns the median of the costs.
func (n *node) runTool(ctx context.Context, c *chain, args []string) (cost, error) {
	const name = "cni-ipvlan-vpc-k8s-tool"
	var all []sample
	for range samplesPerCost {
		e := &executor{env: n.env}
		path, err := e.FindInPath(name, c.path)
		if err != nil {
			return cost{}, err
		}
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		err = n.Do(func() error {
			_, err := e.runMeasured(exec.CommandContext(ctx, path, args...), nil, os.Environ())
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

// upkeepTable returns a table of the upkeep of nodes; nil if there is none.
func (r *report) upkeepTable() table.Table {
	if len(r.upkeeps) == 0 {
		return nil
	}
	t := table.Table{{"upkeep"}}
	for _, u := range r.upkeeps {
		t[0] = append(t[0], fmt.Sprintf("pods: %d", u.pods), "CPU")
	}
	size, change := []string{"bytes of the registry"}, []string{"a change of the registry, under its lock"}
	for _, u := range r.upkeeps {
		size, change = append(size, strconv.FormatInt(u.size, 10), ""), append(change, r.costText(u.change), "")
	}
	t = append(t, size, change)
	for i, args := range timerCommands {
		row := []string{"cni-tool " + args[0]}
		for _, u := range r.upkeeps {
			row = append(row, r.costText(u.commands[i].wall), r.costText(u.commands[i].cpu))
		}
		t = append(t, row)
	}
	return t
}
