// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A container runtime calls STATUS again and again, also on an idle node. containerd calls STATUS each time when the
// kubelet asks whether the node is ready. STATUS costs at least as much as a program that does nothing.

// statusMost is the largest ratio of a STATUS's CPU time to the CPU time of a program that does nothing. The goal is
// 1.15, but the checks of STATUS take more. VERSION of the same program makes no check, so VERSION shows the cost
// without the checks.
const statusMost = 1.42

// A readiness is the cost of STATUS of a chain, or of VERSION.
type readiness struct {
	*chain
	verb string
	all  []sample
}

func (s *readiness) label() string {
	if s.verb == "STATUS" {
		return s.name
	}
	return s.name + ", " + s.verb
}

func asksStatus(c *chain) bool { return slices.Contains([]string{ours, byVeth, idle}, c.name) }

// statuses measures the STATUS of our chain and of a program that does nothing, in turns. The first round only fills
// the caches, and does not count.
func statuses(ctx context.Context, chains []*chain, rounds int) (all []*readiness, err error) {
	for _, c := range chains {
		if asksStatus(c) {
			all = append(all, &readiness{chain: c, verb: "STATUS"})
		}
		if c.name == ours {
			all = append(all, &readiness{chain: c, verb: "VERSION"})
		}
	}
	for round := range rounds + 1 {
		for i := range all {
			s := all[(i+round)%len(all)]
			runtime.GC() // now, and not during the measurement
			one, err := s.call(ctx, s.verb, pod{})
			if err == nil && len(one.steps) != 1 {
				err = fmt.Errorf("%s: %s has executed %d programs", s.name, s.verb, len(one.steps))
			}
			if err != nil {
				return nil, err
			}
			if round > 0 {
				s.all = append(s.all, one)
			}
		}
	}
	return all, nil
}

// ready returns a table of the STATUS of chains.
func (r *report) ready() table.Table {
	var least readiness
	for _, s := range r.statuses {
		if s.name == idle {
			least = *s
		}
	}
	t := table.Table{{"STATUS", "min", "p50", "p90", "x", "CPU", "x"}}
	for _, s := range r.statuses {
		w := walls(s.all)
		t = append(t, []string{s.label(), r.number(quantile(w, 0)), r.number(quantile(w, 0.5)),
			r.number(quantile(w, 0.9)), ratio(quantile(w, 0.5), quantile(walls(least.all), 0.5)), r.number(mean(s.all)),
			ratio(mean(s.all), mean(least.all))})
	}
	return t
}

// idleEnough returns an error if a STATUS of ours takes more than statusMost times the CPU of a program that does
// nothing. It checks only counted instructions, because only their numbers repeat.
func (r *report) idleEnough() error {
	if !r.icount || len(r.statuses) == 0 {
		return nil
	}
	return checkRatios(r.ready(), idle, statusMost, "CPU")
}
