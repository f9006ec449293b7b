// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// flat measures chains on two nodes in turns: as the first pod of a node, and as the last of many.
func flat(ctx context.Context, o options, r *report) error {
	// Each namespace of a pod is open. A VM's first process has 4096 files.
	const files = 1 << 16
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}); err != nil {
		return fmt.Errorf("allow %d open files: %w", files, err)
	}
	w, err := newWorld(sizeFor(o.pods))
	if err != nil {
		return err
	}
	err = w.flat(ctx, o, r)
	return errors.Join(err, w.close())
}

func (w *world) flat(ctx context.Context, o options, r *report) error {
	for _, before := range []int{0, o.pods - 1} {
		n, err := w.newNode(fmt.Sprintf("node%d", before))
		if err != nil {
			return err
		}
		chains, err := n.chains(o, r)
		if err != nil {
			return err
		}
		for _, c := range chains {
			if c.name != ours && c.name != reference {
				continue
			}
			if err := n.crowd(ctx, c, before); err != nil {
				return err
			}
			if c.name == ours {
				u, err := n.upkeep(ctx, c, before)
				if err != nil {
					return err
				}
				r.upkeeps = append(r.upkeeps, u)
			}
			r.subjects = append(r.subjects, &subject{chain: c, label: fmt.Sprintf("%s, pod %d", c.name, before+1), c: 1})
		}
	}
	for _, s := range r.subjects {
		s.reference = r.subjects[slices.IndexFunc(r.subjects, func(first *subject) bool { return first.name == s.name })]
	}
	r.x = "pod 1"
	w.EC2.ResetCalls()
	if err := rounds(ctx, r.subjects, o.rounds); err != nil {
		return err
	}
	for _, s := range r.subjects {
		if s.reference != s {
			r.note("ADD with %d pods on the node against ADD with 1: %s x for %s.", o.pods, ratio(s.p50(), s.reference.p50()), s.name)
		}
	}
	w.asked(r)
	return nil
}

// p50 returns the median duration of an ADD.
func (s *subject) p50() time.Duration { return quantile(walls(s.add), 0.5) }

// crowd gives the node pods that stay, and room for one more.
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
