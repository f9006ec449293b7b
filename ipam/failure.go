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

// fail records why EC2 has not given what was asked for since the time began. If began is
// zero, EC2 will be asked again. Package lease uses that record for the other waiters.
//
// A subnet has room again when pods of any node end. Until then, the runtimes of all nodes try all waiting pods again
// and again. If each ADD asked, they would use up the calls of nodes whose subnets have room. So the record counts for
// some time.
func (p *Pool) fail(ctx context.Context, o lease.Owner, why error, began time.Time) error {
	if errors.Is(why, context.DeadlineExceeded) || errors.Is(why, context.Canceled) {
		began = time.Time{} // it was our time that has ended
	}
	f := registry.Failure{Text: why.Error(), Hint: Hint(why), Began: began, Since: time.Now()}
	if !began.IsZero() && errors.Is(why, aws.ErrSubnetFull) && !aws.MaybeDone(why) {
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
