// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"time"
)

// A sample has the cost of one call of a chain, such as an ADD, and the cost of each plugin that the call executed.
type sample struct {
	cost
	steps []step
}

// A subject is a chain with a number of simultaneous calls.
type subject struct {
	*chain
	label       string
	callsAtOnce int
	reference   *subject // ratios divide this subject's figures by the reference's figures; nil: there are no ratios

	add, del []sample
}

func measureChains(ctx context.Context, o options, r *report) error {
	w, err := newWorld(o.nodeSize())
	if err != nil {
		return err
	}
	err = w.measureChains(ctx, o, r)
	return errors.Join(err, w.close())
}

func (w *world) measureChains(ctx context.Context, o options, r *report) error {
	n, err := w.newNode("node")
	if err != nil {
		return err
	}
	chains, err := n.installedChains(o, r)
	if err != nil {
		return err
	}
	if o.status {
		o.c, r.reference = concurrencies{1}, noopChain
		chains = slices.DeleteFunc(chains, func(c *chain) bool { return !asksStatus(c) })
	}
	if err := n.prepareChains(ctx, chains, slices.Max(o.c)); err != nil {
		return err
	}
	if !o.status {
		if err := r.measureCalls(ctx, chains, o); err != nil {
			return err
		}
	}
	if r.statuses, err = measureStatuses(ctx, chains, o.rounds); err != nil {
		return err
	}
	w.reportCalls(r)
	return nil
}

func (r *report) measureCalls(ctx context.Context, chains []*chain, o options) error {
	r.reference = reference
	for _, c := range o.c {
		var subjects []*subject
		for _, ch := range chains {
			subjects = append(subjects, &subject{chain: ch, label: ch.name, callsAtOnce: c})
		}
		for _, s := range subjects {
			if i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == reference }); i >= 0 {
				s.reference = subjects[i]
			}
		}
		if err := measureRounds(ctx, subjects, batchCount(o.rounds, c)); err != nil {
			return err
		}
		r.subjects = append(r.subjects, subjects...)
	}
	return nil
}

// installedChains returns the chains whose programs are installed. For each other candidate, it adds a note to the
// report.
func (n *node) installedChains(o options, r *report) ([]*chain, error) {
	single, several := o.conflist, filepath.Join(filepath.Dir(o.conflist), "three-plugins.conflist")
	own, err1 := warmConflist(single, n.world.interfaceIndex, o.prefix, "")
	routed, err2 := warmConflist(single, n.world.interfaceIndex, o.prefix, "veth")
	chained, err3 := warmConflist(several, n.world.interfaceIndex, o.prefix, "")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	var cs []*chain
	for _, c := range candidates(own, routed, chained, n.dir) {
		ch, err := c.newChain(n, []string{o.bin, o.peers})
		if err != nil {
			r.note("%s: not measured: %v", c.name, err)
			continue
		}
		cs = append(cs, ch)
	}
	return cs, nil
}

// prepareChains executes ADD and DEL of each chain for podCount pods. After that, the measured calls need not get
// addresses from EC2, load kernel modules, or add kernel objects that all pods of a node share. At the end, it resets
// the list of the calls to EC2.
func (n *node) prepareChains(ctx context.Context, chains []*chain, podCount int) error {
	for _, c := range chains {
		ps, err := n.newPods(podCount)
		if err != nil {
			return err
		}
		for _, verb := range []string{"ADD", "DEL"} {
			if err := c.execEach(ctx, verb, ps); err != nil {
				return err
			}
		}
		if err := ps.close(); err != nil {
			return err
		}
	}
	n.world.EC2.ResetCalls()
	return nil
}

// batchCount returns how many batches of c simultaneous calls to run: rounds/c, but at least 4 and at most rounds.
func batchCount(rounds, c int) int { return min(rounds, max(4, rounds/c)) }

// measureRounds measures each subject once in each of n rounds. Each round begins with another subject. Before these
// rounds, one more round fills the caches, and its costs do not count.
func measureRounds(ctx context.Context, subjects []*subject, n int) error {
	for round := range n + 1 {
		for i := range subjects {
			s := subjects[(i+round)%len(subjects)]
			if err := s.runBatch(ctx, round > 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// runBatch executes ADD for callsAtOnce pods at the same time, and then DEL. It adds the costs to the subject if keep
// is true.
func (s *subject) runBatch(ctx context.Context, keep bool) error {
	ps, err := s.node.newPods(s.callsAtOnce)
	if err != nil {
		return err
	}
	runtime.GC() // now, and not during the measurement
	adds, err := s.execAll(ctx, "ADD", ps)
	if err != nil {
		return err
	}
	dels, err := s.execAll(ctx, "DEL", ps)
	if err != nil {
		return err
	}
	if keep {
		s.add, s.del = append(s.add, adds...), append(s.del, dels...)
	}
	return errors.Join(ps.close(), settle(ctx, s.callsAtOnce))
}

// settle gives the kernel time to remove the namespaces of pods in the background.
func settle(ctx context.Context, namespaces int) error {
	t := time.NewTimer(time.Duration(20+5*namespaces) * time.Millisecond)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("interrupted: %w", ctx.Err())
	}
}
