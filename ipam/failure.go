// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// recordFailure records why EC2 has not given addresses to this process. The other waiting ADDs of the pool read the
// record: see package lease. The argument askedSince is the time when this process began to ask EC2. If this or another
// process will ask EC2 again, askedSince is zero, and the record makes no other ADD fail.
//
// If a subnet is full, no ADD of the pool asks EC2 again until the record expires (Until of registry.Failure). Without
// this pause, the repeated ADDs of all nodes would use up the account's rate of calls.
func (p *Pool) recordFailure(ctx context.Context, o lease.Owner, cause error, askedSince time.Time) error {
	if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, context.Canceled) {
		askedSince = time.Time{} // this process has no time left, and EC2 has refused nothing
	}
	f := registry.Failure{Text: cause.Error(), Hint: Hint(cause), Began: askedSince, Since: time.Now()}
	if !askedSince.IsZero() && errors.Is(cause, aws.ErrSubnetFull) && !aws.MaybeDone(cause) {
		f.Until = f.Since.Add(registry.MostEmpty/3 + p.Cloud.Jitter(registry.MostEmpty*2/3))
	}
	return p.Registry.Change(context.WithoutCancel(ctx), func(s *registry.State) { s.Failures[p.Concern(o)] = f })
}

// Hint returns what an operator can do about an error, or "" if nothing is known.
func Hint(err error) string {
	if e, ok := errors.AsType[*plugin.Error](err); ok {
		return e.Hint
	}
	return aws.Hint(err)
}
