// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command acceptance tries the suite on the real EC2, for a person with an AWS account. make test-ec2 builds the
// necessary programs and runs the command.
//
// The command launches two small instances in one subnet, and installs the suite there. It compares the answers of EC2
// and of the metadata service with the answers of the simulator (package compare). Then it makes pods with the
// installed plugins. It sends packets between the pods, the instances and the internet. At the end, the command deletes
// the objects that it has made, and prints an estimate of the cost.
//
// The command creates each object with the tag cni-ipvlan-vpc-k8s-acceptance, whose value is the ID of the run. To find
// the objects that it must delete, it asks EC2 for objects with this tag. So it also finds an object if EC2's answer to
// the creation was lost. With -clean, it finds the objects of killed runs. The command deletes no object without the
// tag. The instances terminate themselves after an hour.
//
// Without -yes, the command makes and deletes nothing. It only prints what it would make or delete, where, and at what
// cost.
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
	exitFailed = 1 // a check failed, or a step of the run failed
	exitMisuse = 2 // the command made and deleted nothing: -yes or credentials are missing, or an argument is wrong
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "acceptance: interrupted by a signal. The program deletes its objects in EC2 before "+
			"it ends. A second signal ends the program at once, and the objects remain")
	})
	// A signal from the terminal also ends a program that reads the output, for example tee(1). The next write to the
	// pipe then raises SIGPIPE, but the command must still delete its objects.
	signal.Ignore(syscall.SIGPIPE)
	err := run(ctx, os.Args[1:], output{os.Stdout})
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "acceptance:", err)
	if errorCode(err) == "UnauthorizedOperation" {
		fmt.Fprintln(os.Stderr, "acceptance: make test-ec2 ARGS=-policy prints the permissions that the caller needs")
	}
	if _, ok := errors.AsType[*refusal](err); ok {
		os.Exit(exitMisuse)
	}
	os.Exit(exitFailed)
}

// A refusal is an error that ends the command before it has made or deleted anything.
type refusal struct{ err error }

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// newRefusal returns a refusal that wraps err. If a signal has cancelled ctx, the refusal names the signal.
func newRefusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = fmt.Errorf("interrupted: nothing was made: %w", context.Cause(ctx))
	}
	return &refusal{err}
}

func run(ctx context.Context, args []string, out output) error {
	o, err := parseOptions(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return &refusal{err}
	}
	if o.policy {
		return out.json(callerPolicy())
	}
	c, err := openCloud(ctx, o)
	if err != nil {
		return newRefusal(ctx, err)
	}
	if o.clean {
		return c.cleanKilledRuns(ctx, o, out)
	}
	p, err := c.plan(ctx, o)
	if err != nil {
		return newRefusal(ctx, err)
	}
	p.printPlan(out)
	if !o.yes {
		return &refusal{errors.New("nothing was made. To make these objects, use -yes (make test-ec2 ARGS=-yes)")}
	}
	return c.runTest(ctx, o, p, out)
}
