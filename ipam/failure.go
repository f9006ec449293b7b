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

// fail records the error why: the reason why EC2 has not given what a process has asked for. The time began is when
// that process began to ask EC2. If began is zero, a process will ask EC2 again. Package lease reads the record for the
// other waiting ADDs of the pool.
//
// A subnet has room again when pods of any node end. Until then, the runtimes of all nodes repeat the ADDs of all
// waiting pods. If each of these ADDs asked EC2, they would use up the calls of nodes whose subnets have room. So the
// record of a full subnet counts for some time.
func (p *Pool) fail(ctx context.Context, o lease.Owner, why error, began time.Time) error {
	if errors.Is(why, context.DeadlineExceeded) || errors.Is(why, context.Canceled) {
		began = time.Time{} // the time of this process has ended, and EC2 has refused nothing
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
