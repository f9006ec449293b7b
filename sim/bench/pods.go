// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// flat measures chains in turns, each on two nodes of its own. On one node, flat measures the only pod of the node. On
// the other node, flat measures the last of many pods.
func flat(ctx context.Context, o options, r *report) error {
	w, err := newWorld(o.size())
	if err != nil {
		return err
	}
	err = w.flat(ctx, o, r)
	return errors.Join(err, w.close())
}

func (w *world) flat(ctx context.Context, o options, r *report) error {
	names := []string{ours, byVeth, reference}
	if o.alone {
		names = names[:1]
	}
	for _, before := range []int{0, o.pods - 1} {
		for _, name := range names {
			if err := w.crowded(ctx, o, r, name, before); err != nil {
				return err
			}
		}
	}
	for _, s := range r.subjects {
		s.reference = r.subjects[slices.IndexFunc(r.subjects, func(first *subject) bool {
			return first.name == s.name
		})]
	}
	r.x = "pod 1"
	r.note("Each node is a %s; its addresses are %s.", w.Name, o.addresses())
	w.EC2.ResetCalls()
	if err := rounds(ctx, r.subjects, o.rounds); err != nil {
		return err
	}
	for _, s := range r.subjects {
		if s.reference != s {
			r.note("With %d pods on the node against 1, %s: ADD %s; DEL %s.", o.pods, s.name,
				growth(s.add, s.reference.add), growth(s.del, s.reference.del))
		}
	}
	w.asked(r)
	return nil
}

// addresses returns a text about the addresses that the pods have.
func (o options) addresses() string {
	if o.prefix {
		return "those of delegated prefixes"
	}
	return "single ones"
}

// growth returns a text that compares costs by two figures that contain no waits: the minimum of the elapsed time, and
// the CPU time.
func growth(now, before []sample) string {
	return fmt.Sprintf("%s x at least, %s x CPU", ratio(quantile(walls(now), 0), quantile(walls(before), 0)),
		ratio(mean(now), mean(before)))
}

// crowded adds a subject to the report: a chain on a new node, on which pods of the chain are already.
func (w *world) crowded(ctx context.Context, o options, r *report, name string, before int) error {
	n, err := w.newNode(fmt.Sprintf("node%d-%d", before, len(w.nodes)))
	if err != nil {
		return err
	}
	chains, err := n.chains(o, r)
	i := slices.IndexFunc(chains, func(c *chain) bool { return c.name == name })
	if err != nil || i < 0 {
		return err // a note of the report says why the chain is missing
	}
	c := chains[i]
	if err := n.crowd(ctx, c, before); err != nil {
		return err
	}
	if name == ours {
		u, err := n.upkeep(ctx, c, before)
		if err != nil {
			return err
		}
		r.upkeeps = append(r.upkeeps, u)
	}
	r.subjects = append(r.subjects, &subject{chain: c, label: fmt.Sprintf("%s, pod %d", name, before+1), c: 1})
	return nil
}

// crowd adds pods that stay on the node, and makes room for one more pod.
func (n *node) crowd(ctx context.Context, c *chain, pods int) error {
	ps, err := n.newPods(pods + 1)
	if err != nil {
		return err
	}
	if err := c.each(ctx, "ADD", ps); err != nil {
		return err
	}
	return c.each(ctx, "DEL", ps[pods:])
}
