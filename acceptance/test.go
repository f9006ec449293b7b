// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// runTest makes the objects of a run, runs the parts of the test, and deletes the objects.
func (c *cloud) runTest(ctx context.Context, o options, p plan, out output) error {
	m := &madeObjects{}
	return runAndClean(func() error {
		err := c.makeObjects(ctx, o, p, m, out)
		if err == nil {
			err = c.runParts(ctx, o, p, m, out)
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", err)
		}
		return err
	}, func() error {
		err := c.deleteObjects(context.WithoutCancel(ctx), p.run, m, defaultLooks, out)
		if !m.started.IsZero() {
			out.line("cost   %s", p.cost(time.Since(m.started)))
		}
		return err
	})
}

// runAndClean calls its first function, and then its second function, even if the first function panics.
func runAndClean(do, clean func() error) (err error) {
	defer func() {
		failure := recover()
		err = errors.Join(err, clean())
		if failure != nil {
			panic(failure)
		}
	}()
	return do()
}

// runParts runs the parts of the test that the options select.
func (c *cloud) runParts(ctx context.Context, o options, p plan, m *madeObjects, out output) error {
	for _, n := range m.nodes {
		var err error
		if n.shell, err = connect(ctx, n.public, o.user, m, c.waitPause); err != nil {
			return err
		}
		defer n.shell.Close()
		out.line("ssh    %s (%s, %s) lets us in", n.name, n.id, n.addr)
	}
	failures := 0
	if o.wantsPart(partCompare) {
		found, err := c.compareAnswers(ctx, p, m, out)
		if err != nil {
			return err
		}
		failures += found
	}
	if o.wantsPart(partPods) {
		found, err := c.testPods(ctx, o, p, m, out)
		if err != nil {
			return err
		}
		failures += found
	}
	if failures > 0 {
		return fmt.Errorf("%d checks failed", failures)
	}
	out.line("all checks passed")
	return nil
}
