// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/bench/table"
)

// The chains below which no plugin can come: one that does nothing, and the system calls of ours made again, by a Go
// program and by a program without Go's runtime. For these calls the kernel does what it does for ours.
const (
	idle     = "noop"
	replayed = "replay of ours"
	unaided  = "replay of ours, no runtime"
)

// replays are their plugins. The second one is the recordings themselves, one for each command.
var replays = []struct{ name, plugin string }{{replayed, "replay"}, {unaided, "recorded"}}

// recordOurs records our chain, if it is one of these.
func (n *node) recordOurs(ctx context.Context, chains []*chain, o options) ([]*chain, error) {
	i := slices.IndexFunc(chains, func(c *chain) bool { return c.name == ours })
	if i < 0 {
		return nil, nil
	}
	return n.record(ctx, chains[i], o)
}

// record records an ADD and a DEL of our chain, and returns the chains that make their system calls again.
//
// What they call names one pod, so all their pods have its name. The kernel may give the links of the node any index. So
// the recording names the one that the veth pair had, where it makes the pair.
func (n *node) record(ctx context.Context, ours *chain, o options) ([]*chain, error) {
	links, err := n.indices()
	if err != nil {
		return nil, err
	}
	ps, err := n.newPods(1)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(n.dir, "recorded")
	before := map[string]files{}
	for _, verb := range []string{"ADD", "DEL"} {
		if before[verb], err = n.registry(); err != nil {
			return nil, err
		}
		r := &recorder{executor: executor{env: n.env}}
		if _, err := ours.exec(ctx, verb, ps[0], r); err != nil {
			return nil, err
		}
		if verb == "ADD" {
			err = r.recording.nameIndex(n, links)
		}
		if err = errors.Join(err, r.recording.write(file+"-"+verb)); err != nil {
			return nil, fmt.Errorf("record %s: %w", verb, err)
		}
	}
	if err := ps.close(); err != nil {
		return nil, err
	}
	var again []*chain
	for _, p := range replays {
		if p.name == unaided && runtime.GOARCH != "amd64" {
			continue
		}
		c, err := ours.replay(p.name, p.plugin, ps[0].id, file, o)
		if err == nil {
			c.before = before
			err = c.prove(ctx, ours, links)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		again = append(again, c)
	}
	return again, nil
}

// files are files with what they contain.
type files map[string][]byte

// registry reads the files of the node's registry. A change writes over the older of two, and ends it only where the new text
// is shorter. So a replayed change leaves a broken registry if the file is longer than it was in the recording.
func (n *node) registry() (files, error) {
	paths, err := filepath.Glob(filepath.Join(n.dir, "run", "registry.json*"))
	all := files{}
	for _, path := range paths {
		b, e := os.ReadFile(path)
		all[path], err = b, errors.Join(err, e)
	}
	return all, err
}

// restore writes the files again.
func (f files) restore() error {
	for path, b := range f {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// nameIndex names the index of the veth pair, which is the only link that was not there before.
func (r *recording) nameIndex(n *node, before map[string]int) error {
	after, err := n.indices()
	if err != nil {
		return err
	}
	maps.DeleteFunc(after, func(name string, _ int) bool { _, was := before[name]; return was })
	if len(after) != 1 {
		return fmt.Errorf("an ADD has made %d links on the node, and not one", len(after))
	}
	for _, index := range after {
		err = r.setIndex(index)
	}
	return err
}

// indices are the indices of the node's links, by name.
func (n *node) indices() (map[string]int, error) {
	links, err := n.Links()
	all := map[string]int{}
	for _, l := range links {
		all[l.Name] = l.Index
	}
	return all, err
}

// replay is the chain with another plugin in the place of ours, for one pod.
func (c *chain) replay(name, plugin, pod, file string, o options) (*chain, error) {
	l, err := libcni.NetworkConfFromBytes([]byte(strings.Replace(string(c.list.Bytes), `"type":"`+c.list.Plugins[0].Network.Type+`"`, `"type":"`+plugin+`"`, 1)))
	if err != nil {
		return nil, err
	}
	return &chain{name: name, node: c.node, list: l, path: []string{o.bin, filepath.Dir(file)}, env: []string{"BENCH_REPLAY=" + file}, pod: pod}, nil
}

// prove fails unless an ADD of the replay leaves what our CHECK accepts, and a DEL leaves the node's links as they were.
func (c *chain) prove(ctx context.Context, ours *chain, before map[string]int) error {
	ps, err := c.newPods(1)
	if err != nil {
		return err
	}
	for _, call := range []struct {
		*chain
		verb string
	}{{c, "ADD"}, {ours, "CHECK"}, {c, "DEL"}} {
		if _, err := call.call(ctx, call.verb, ps[0]); err != nil {
			return err
		}
	}
	after, err := c.node.indices()
	if err == nil && !maps.Equal(before, after) {
		err = fmt.Errorf("after a DEL the node has the links %v, and not %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
	}
	return errors.Join(err, ps.close())
}

// newPods creates namespaces for the chain: new ones, or again the only one that it can be added to.
func (c *chain) newPods(count int) (pods, error) {
	if c.pod == "" {
		return c.node.newPods(count)
	}
	p, err := c.node.newPod(c.pod)
	return pods{p}, err
}

// floor returns a table with the costs of our chain and of those below which it cannot come.
func (r *report) floor() table.Table {
	find := func(name string) *subject {
		i := slices.IndexFunc(r.subjects, func(s *subject) bool { return s.label == name && s.c == 1 })
		if i < 0 {
			return nil
		}
		return r.subjects[i]
	}
	to := find(idle)
	if to == nil || find(replayed) == nil {
		return nil
	}
	t := table.Table{{"plugin", "ADD p50", "x", "CPU", "x", "DEL p50", "x", "CPU", "x"}}
	for _, name := range []string{idle, unaided, replayed, ours} {
		s := find(name)
		if s == nil {
			continue
		}
		row := []string{name}
		for _, verb := range [][2][]sample{{s.add, to.add}, {s.del, to.del}} {
			row = append(row, r.number(quantile(walls(verb[0]), 0.5)), ratio(quantile(walls(verb[0]), 0.5), quantile(walls(verb[1]), 0.5)),
				r.number(mean(verb[0])), ratio(mean(verb[0]), mean(verb[1])))
		}
		t = append(t, row)
	}
	return t
}
