// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"context"
	"strconv"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// GrowProgram is the program that can ask EC2. It contains the AWS SDK, so it starts more slowly than the plugins. An
// ADD executes GrowProgram only if [IsNone] returns true for the error of Take. One ADD at a time does this: see
// [Source]. The CNI specification (section 4) calls such an execution a delegation.
const GrowProgram = "cni-ipvlan-vpc-k8s-grow"

// acquireArg is the first argument of a GrowProgram that only leases addresses for its parent process. The parent then
// waits for the link of the ENI, while the next ADD has its turn. The second argument is the time until the deadline of
// the parent's ADD. The third argument is the number of the interface.
const acquireArg = "acquire"

// Program returns a [Source] for a process that cannot ask EC2 itself. The Source executes [GrowProgram]. GrowProgram
// ends when ctx or this process ends.
//
// GrowProgram takes the lock "grow". So the Source must not hold this lock, and has a lock of its own. If this process
// is killed, the kernel releases the Source's lock. The next ADD may then execute GrowProgram before the first
// GrowProgram has ended. The lock "grow" makes this safe.
func Program[C any](ctx context.Context, r *plugin.Request[C]) Source {
	ask := func(own context.Context, p *Pool, o Owner, _ error) (Allocation, error) {
		if _, err := r.Delegate(ctx, GrowProgram, acquireArg, timeLeft(own).String(), strconv.Itoa(o.NIC)); err != nil {
			return Allocation{}, err
		}
		a, err := p.takeAtLast(own, o) // GrowProgram has leased an address, perhaps at the last moment
		if IsNone(err) {
			err = plugin.Errorf(plugin.CodeTryAgain, "see the log of the container runtime",
				"the lease that %s has made for the pod has already ended: %w", GrowProgram, err)
		}
		return a, err
	}
	return Source{Turn: "queue", Ask: ask}
}

// timeLeft returns the time until the deadline of ctx, but at least 0.1 seconds, so that GrowProgram can report why it
// failed.
func timeLeft(ctx context.Context) time.Duration {
	const moment = 100 * time.Millisecond
	end, ok := ctx.Deadline()
	if !ok {
		return time.Minute
	}
	return max(time.Until(end), moment)
}

// Acquisition returns the function for the command ADD of a GrowProgram. The argument args has the command-line
// arguments of the GrowProgram. If the arguments do not come from [Program], Acquisition returns nil. The parent
// process ignores the CNI result of the function, and reads the lease from the registry.
func Acquisition(args []string, from Source) func(context.Context, *plugin.Request[Config]) (*types100.Result, error) {
	limit, nic, ok := acquisition(args)
	if !ok {
		return nil
	}
	return func(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, err error) {
		err = withPool(ctx, r, limit, func(ctx context.Context, p *Pool, policies []Policy) error {
			if nic >= len(policies) {
				return plugin.Errorf(plugin.CodeInvalid, "install all programs of the suite from one release",
					"the pod has %d interfaces, and interface %d needs an address", len(policies), nic+1)
			}
			p, from.Hands = p.withPolicy(policies[nic]), true
			a, err := p.Acquire(ctx, ownerOf(r, nic), from)
			if err == nil {
				res = a.Result(a.ENI.Link, p.Policy)
			}
			return err
		})
		return res, err
	}
}

// acquisition parses the arguments that [Program] passes.
func acquisition(args []string) (limit time.Duration, nic int, ok bool) {
	if len(args) != 3 || args[0] != acquireArg {
		return 0, 0, false
	}
	limit, err := time.ParseDuration(args[1])
	nic, nicErr := strconv.Atoi(args[2])
	return limit, nic, err == nil && nicErr == nil && nic >= 0
}
