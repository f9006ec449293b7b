// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command acceptance tries the suite on the real EC2, for a person with an AWS account. make test-ec2 builds what it
// needs and runs it.
//
// It launches two small instances in one subnet, and installs the suite there. It compares the answers of EC2 and of
// the metadata service with the answers of the simulator (package compare). Then it makes pods with the installed
// plugins, and sends packets between them, the instances and the internet: the checks of make demo, between real ENIs.
// At the end it deletes what it has made, and prints an estimate of the cost.
//
// Everything that it makes has the tag cni-ipvlan-vpc-k8s-acceptance from its creation on, with the ID of the run as
// the value. So it finds what to delete in EC2, also after a lost answer, and after a run that was killed (-clean). It
// deletes nothing without the tag. The instances end by themselves after an hour.
//
// Without -yes, it only prints what it would make or delete, where, and what that would cost.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// The exit statuses.
const (
	exitFailed = 1 // a check failed, or something could not be done
	exitMisuse = 2 // nothing was made or deleted: there is no -yes, there are no credentials, or an argument is wrong
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "acceptance: a signal: what was made is deleted first. A second signal ends the "+
			"program at once, and leaves it")
	})
	// a reader of the output, such as tee(1), may end by the same signal: deleting must go on
	signal.Ignore(syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], output{os.Stdout})
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "acceptance:", err)
	if code(err) == "UnauthorizedOperation" {
		fmt.Fprintln(os.Stderr, "acceptance: the permissions that it needs: make test-ec2 ARGS=-policy")
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		os.Exit(exitMisuse)
	}
	os.Exit(exitFailed)
}

// A refusal is why nothing was made or deleted.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// refused is a refusal because of an error, or of a signal, before anything was made.
func refused(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: nothing was made: %w", context.Cause(ctx))
	}
	return &refusal{err}
}

// run does what the arguments say.
func run(ctx context.Context, args []string, out output) error {
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return &refusal{err}
	}
	if o.policy {
		return out.json(callerPolicy())
	}
	c, err := open(ctx, o)
	if err != nil {
		return refused(ctx, err)
	}
	if o.clean {
		return c.sweep(ctx, o, out)
	}
	p, err := c.plan(ctx, o)
	if err != nil {
		return refused(ctx, err)
	}
	p.print(out)
	if !o.yes {
		return &refusal{errors.New("nothing was made: to go on, say -yes (make test-ec2 ARGS=-yes)")}
	}
	return c.test(ctx, o, p, out)
}
