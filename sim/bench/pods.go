// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// measureByPodCount measures each chain on two nodes of its own. On the first node, the measured pod is the only pod.
// On the second node, it is the last of several pods, whose number is the flag -pods. The measurements of all nodes
// take turns.
func measureByPodCount(ctx context.Context, o options, r *report) error {
	w, err := newWorld(o.nodeSize())
	if err != nil {
		return err
	}
	err = w.measureByPodCount(ctx, o, r)
	return errors.Join(err, w.close())
}

func (w *world) measureByPodCount(ctx context.Context, o options, r *report) error {
	names := []string{ours, byVeth, reference}
	if o.alone {
		names = names[:1]
	}
	for _, before := range []int{0, o.pods - 1} {
		for _, name := range names {
			if err := w.addSubject(ctx, o, r, name, before); err != nil {
				return err
			}
		}
	}
	for _, s := range r.subjects {
		s.reference = r.subjects[slices.IndexFunc(r.subjects, func(first *subject) bool {
			return first.name == s.name
		})]
	}
	r.reference = "pod 1"
	r.note("Each node is of the type %s. Its pods have %s.", w.Name, o.addressesText())
	w.EC2.ResetCalls()
	if err := measureRounds(ctx, r.subjects, o.rounds); err != nil {
		return err
	}
	for _, s := range r.subjects {
		if s.reference != s {
			r.note("%s: with %d pods on the node instead of 1, ADD takes %s, and DEL takes %s.", s.name, o.pods,
				growthText(s.add, s.reference.add), growthText(s.del, s.reference.del))
		}
	}
	w.reportCalls(r)
	return nil
}

func (o options) addressesText() string {
	if o.prefix {
		return "addresses of delegated prefixes"
	}
	return "single addresses"
}

// growthText returns a text that compares a chain's costs on a node with many pods (now) with those on an empty node
// (before). It uses minimum elapsed times and average CPU times, because these figures contain no waits.
func growthText(now, before []sample) string {
	return fmt.Sprintf("%s x the minimum time and %s x the average CPU",
		ratio(quantile(walls(now), 0), quantile(walls(before), 0)), ratio(mean(now), mean(before)))
}

// addSubject makes a node with otherPods pods of a chain, and adds a subject for this chain to the report.
func (w *world) addSubject(ctx context.Context, o options, r *report, name string, otherPods int) error {
	n, err := w.newNode(fmt.Sprintf("node%d-%d", otherPods, len(w.nodes)))
	if err != nil {
		return err
	}
	chains, err := n.installedChains(o, r)
	i := slices.IndexFunc(chains, func(c *chain) bool { return c.name == name })
	if err != nil || i < 0 {
		return err // if the chain is missing, err is nil, and a note in the report says why
	}
	c := chains[i]
	if err := n.addCrowd(ctx, c, otherPods); err != nil {
		return err
	}
	if name == ours {
		u, err := n.measureUpkeep(ctx, c, otherPods)
		if err != nil {
			return err
		}
		r.upkeeps = append(r.upkeeps, u)
	}
	label := fmt.Sprintf("%s, pod %d", name, otherPods+1)
	r.subjects = append(r.subjects, &subject{chain: c, label: label, callsAtOnce: 1})
	return nil
}

// addCrowd adds pods that stay on the node. One more ADD and DEL leaves a free address for the measured pod.
func (n *node) addCrowd(ctx context.Context, c *chain, pods int) error {
	ps, err := n.newPods(pods + 1)
	if err != nil {
		return err
	}
	if err := c.execEach(ctx, "ADD", ps); err != nil {
		return err
	}
	return c.execEach(ctx, "DEL", ps[pods:])
}
