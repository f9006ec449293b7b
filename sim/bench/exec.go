// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
)

// A cost has the elapsed time (wall) and the CPU time (user and system) of programs and their child processes.
type cost struct{ wall, cpu time.Duration }

// A step is a plugin that an executor has executed, with its cost.
type step struct {
	plugin string
	cost
}

// An executor executes plugins for libcni, and measures their cost.
type executor struct {
	invoke.DefaultExec

	env   []string
	attr  *syscall.SysProcAttr // nil: the default attributes
	steps []step
}

// ExecPlugin runs a plugin in the network namespace of this thread.
func (e *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	return e.runMeasured(exec.CommandContext(ctx, path), stdin, environ)
}

func (e *executor) runMeasured(c *exec.Cmd, stdin []byte, environ []string) ([]byte, error) {
	c.Env, c.SysProcAttr = append(environ, e.env...), e.attr
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	start := time.Now()
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", filepath.Base(c.Path), err, stdout.Bytes(), stderr.Bytes())
	}
	wall := time.Since(start)
	u := c.ProcessState.SysUsage().(*syscall.Rusage)
	cpu := time.Duration(u.Utime.Nano() + u.Stime.Nano())
	e.steps = append(e.steps, step{filepath.Base(c.Path), cost{wall, cpu}})
	return stdout.Bytes(), nil
}

func (e *executor) cpu() (sum time.Duration) {
	for _, s := range e.steps {
		sum += s.cpu
	}
	return sum
}
