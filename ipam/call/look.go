// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package call

import (
	"context"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Look waits for its turn, and then makes a call to EC2 that changes nothing. While EC2 throttles the action, Look
// waits and tries again, until ctx is done. In a collection, or if ctx has no deadline, no pod waits for the answer. So
// Look then waits at most two seconds (moment). The next collection asks again.
func Look[T any](
	ctx context.Context, p *Node, action string, ask func(context.Context) (T, error),
) (answer T, err error) {
	const moment = 2 * time.Second
	waiting := ctx
	if _, limited := ctx.Deadline(); !limited || !p.Mode.Until.IsZero() {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, moment)
		defer cancel()
	}
	var throttled error // EC2's refusal of the previous attempt
	for attempt := 0; ; attempt++ {
		if err := p.AwaitTurn(waiting, action); err != nil {
			return answer, errors.Join(throttled, err)
		}
		answer, err = ask(ctx)
		if !errors.Is(err, aws.ErrThrottled) {
			return answer, err
		}
		if e := p.NotBefore(ctx, action, p.Backoff(attempt)); e != nil {
			return answer, errors.Join(err, e)
		}
		throttled = err
		if err := p.yieldToADDs(waiting, action); err != nil {
			return answer, errors.Join(throttled, err)
		}
	}
}

// InTurn waits for its turn as Look does, and then makes a changing call. InTurn may repeat the call, so a repetition
// must do no harm. An example is the call that deletes an ENI.
func (p *Node) InTurn(ctx context.Context, action string, do func(context.Context) error) error {
	_, err := Look(ctx, p, action, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

// DeleteNow deletes an ENI that is not attached. Like Look, it waits for its turn.
func (p *Node) DeleteNow(ctx context.Context, eni string) error {
	return p.InTurn(ctx, "DeleteNetworkInterface", func(ctx context.Context) error {
		return p.Cloud.DeleteENI(ctx, eni)
	})
}

// NotBefore records that no process of this node may call the action for some time. The argument wait is this time.
func (p *Node) NotBefore(ctx context.Context, action string, wait time.Duration) error {
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) {
		s.NotBefore[action] = time.Now().Add(wait)
	})
}

// DescribeENIs lists the ENIs that match all filters. Like Look, it waits for its turn.
func (p *Node) DescribeENIs(ctx context.Context, filters ...aws.Filter) ([]aws.ENI, error) {
	ask := func(ctx context.Context) ([]aws.ENI, error) { return p.Cloud.DescribeENIs(ctx, filters...) }
	return Look(ctx, p, "DescribeNetworkInterfaces", ask)
}

// StateOf asks EC2 for the state of an instance. Like Look, it waits for its turn.
func (p *Node) StateOf(ctx context.Context, instance string) (aws.State, error) {
	ask := func(ctx context.Context) (aws.State, error) { return p.Cloud.StateOf(ctx, instance) }
	return Look(ctx, p, "DescribeInstances", ask)
}

// DescribeSubnets lists the subnets of a VPC in one zone. Like Look, it waits for its turn.
func (p *Node) DescribeSubnets(ctx context.Context, vpc, zone string) ([]aws.Subnet, error) {
	ask := func(ctx context.Context) ([]aws.Subnet, error) { return p.Cloud.Subnets(ctx, vpc, zone) }
	return Look(ctx, p, "DescribeSubnets", ask)
}

// DescribeLimits returns the limits of an instance type. Like Look, it waits for its turn.
func (p *Node) DescribeLimits(ctx context.Context, instanceType string) (aws.Limits, error) {
	ask := func(ctx context.Context) (aws.Limits, error) { return p.Cloud.Limits(ctx, instanceType) }
	return Look(ctx, p, "DescribeInstanceTypes", ask)
}
