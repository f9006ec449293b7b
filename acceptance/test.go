// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// test makes the objects of a run, runs the parts of the test, and deletes the objects.
func (c *cloud) test(ctx context.Context, o options, p plan, out output) error {
	m := &made{}
	return cleaning(func() error {
		err := c.make(ctx, o, p, m, out)
		if err == nil {
			err = c.parts(ctx, o, p, m, out)
		}
		if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
			err = errors.Join(cause, err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", err)
		}
		return err
	}, func() error {
		err := c.clean(context.WithoutCancel(ctx), p.run, m, looks, out)
		if !m.started.IsZero() {
			out.line("cost   %s", p.cost(time.Since(m.started)))
		}
		return err
	})
}

// cleaning calls do, and then clean, even if do panics.
func cleaning(do, clean func() error) (err error) {
	defer func() {
		failure := recover()
		err = errors.Join(err, clean())
		if failure != nil {
			panic(failure)
		}
	}()
	return do()
}

// parts runs the parts of the test that the caller wants.
func (c *cloud) parts(ctx context.Context, o options, p plan, m *made, out output) error {
	for _, n := range m.nodes {
		var err error
		if n.shell, err = connect(ctx, n.public, o.user, m, c.wait); err != nil {
			return err
		}
		defer n.shell.Close()
		out.line("ssh    %s (%s, %s) lets us in", n.name, n.id, n.addr)
	}
	failures := 0
	if o.does(partCompare) {
		found, err := c.compare(ctx, p, m, out)
		if err != nil {
			return err
		}
		failures += found
	}
	if o.does(partPods) {
		found, err := c.pods(ctx, o, p, m, out)
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
