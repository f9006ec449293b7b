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

// containerd calls STATUS each time the kubelet asks whether the node is ready, even on an idle node. So STATUS must be
// cheap. bench compares STATUS with a program that does nothing.

// maxStatusRatio limits the ratio of STATUS's CPU time to that of a program that does nothing. The goal is 1.15. bench
// also measures the verb VERSION, which makes no checks.
const maxStatusRatio = 1.42

// A readiness has the costs of the verb STATUS or VERSION of a chain.
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

func asksStatus(c *chain) bool { return slices.Contains([]string{ours, byVeth, noopChain}, c.name) }

// measureStatuses measures, in turns, STATUS of our chains and STATUS of a program that does nothing. The costs of the
// first round do not count, because it fills the caches.
func measureStatuses(ctx context.Context, chains []*chain, rounds int) (all []*readiness, err error) {
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
			one, err := s.measureCall(ctx, s.verb, pod{})
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

func (r *report) statusTable() table.Table {
	var least readiness
	for _, s := range r.statuses {
		if s.name == noopChain {
			least = *s
		}
	}
	t := table.Table{{"STATUS", "min", "p50", "p90", "x", "CPU", "x"}}
	for _, s := range r.statuses {
		w := walls(s.all)
		t = append(t, []string{s.label(), r.costText(quantile(w, 0)), r.costText(quantile(w, 0.5)),
			r.costText(quantile(w, 0.9)), ratio(quantile(w, 0.5), quantile(walls(least.all), 0.5)),
			r.costText(mean(s.all)), ratio(mean(s.all), mean(least.all))})
	}
	return t
}

// checkStatus compares, for each of our two data paths, the cost of STATUS with that of a program that does nothing. It
// returns an error if a ratio is greater than maxStatusRatio. It checks only counts of instructions, because times
// vary.
func (r *report) checkStatus() error {
	if !r.icount || len(r.statuses) == 0 {
		return nil
	}
	return checkRatios(r.statusTable(), noopChain, maxStatusRatio, "CPU")
}
