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

// GrowProgram is the program that can ask EC2. The program contains the AWS SDK, so it starts more slowly than the
// plugins. They execute it only if no address is free. Of all waiting ADDs, only the one that has its turn does so. CNI
// calls this delegation (CNI specification, section 4).
const GrowProgram = "cni-ipvlan-vpc-k8s-grow"

// acquire is the program's first argument if it only has to get addresses. The parent waits
// for the link, and meanwhile the next ADD has its turn. The second argument is how much time
// is left, and the third is the number of the interface. A release that does not know the
// arguments does the whole ADD, which is slower but correct. An earlier release has no third.
const acquire = "acquire"

// Program is the source of a process that cannot ask EC2 itself. It executes [GrowProgram],
// which ends with ctx and with this process.
//
// Its lock is not "grow": the program takes that one, and must not wait for its own parent.
// If a process is killed, the kernel releases its lock, and the program ends with its parent.
// If the next program begins before the last one has ended, it waits for "grow".
func Program[C any](ctx context.Context, r *plugin.Request[C]) Source {
	ask := func(own context.Context, p *Pool, o Owner, _ error) (Allocation, error) {
		if _, err := r.Delegate(ctx, GrowProgram, acquire, left(own).String(), strconv.Itoa(o.NIC)); err != nil {
			return Allocation{}, err
		}
		a, err := p.takeAtLast(own, o) // the program has leased it to the owner, maybe at the last moment
		if IsNone(err) {
			err = plugin.Errorf(plugin.CodeTryAgain, "see the log of the container runtime",
				"%s has got an address for the pod, and its lease has ended since: %w", GrowProgram, err)
		}
		return a, err
	}
	return Source{Turn: "queue", Ask: ask}
}

// left returns how much time ctx has left. left returns at least a moment, so that the program can report why it
// failed.
func left(ctx context.Context) time.Duration {
	const moment = 100 * time.Millisecond
	end, ok := ctx.Deadline()
	if !ok {
		return time.Minute
	}
	return max(time.Until(end), moment)
}

// Acquisition returns the ADD for the arguments of [Program], or nil for other arguments. The
// result of that ADD is not used, because the registry has the lease.
func Acquisition(args []string, from Source) func(context.Context, *plugin.Request[Config]) (*types100.Result, error) {
	limit, nic, ok := acquisition(args)
	if !ok {
		return nil
	}
	return func(ctx context.Context, r *plugin.Request[Config]) (res *types100.Result, err error) {
		err = withPool(ctx, r, limit, func(ctx context.Context, p *Pool, policies []Policy) error {
			if nic >= len(policies) {
				return plugin.Errorf(plugin.CodeInvalid, "install programs of one release",
					"the pod has %d interfaces, and interface %d needs an address", len(policies), nic+1)
			}
			p, from.Hands = p.by(policies[nic]), true
			a, err := p.Acquire(ctx, ownerOf(r, nic), from)
			if err == nil {
				res = a.Result(a.ENI.Link, p.Policy)
			}
			return err
		})
		return res, err
	}
}

// acquisition reads the arguments of [Program].
func acquisition(args []string) (limit time.Duration, nic int, ok bool) {
	if len(args) < 2 || len(args) > 3 || args[0] != acquire {
		return 0, 0, false
	}
	limit, err := time.ParseDuration(args[1])
	if len(args) == 3 && err == nil {
		nic, err = strconv.Atoi(args[2])
	}
	return limit, nic, err == nil && nic >= 0
}
