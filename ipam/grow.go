// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// growPool asks EC2 once for the addresses that all waiting ADDs of the pool need. Its caller holds the lock "grow". If
// an ENI has room, growPool gets prefixes or addresses for this ENI, because this costs the fewest calls. It begins
// with the fullest ENI. If no ENI has room, growPool creates an ENI.
func (p *Pool) growPool(ctx context.Context) error { return p.withPassedOver(p.growOnce(ctx)) }

func (p *Pool) growOnce(ctx context.Context) error {
	if p.Policy.Provision == lease.ProvisionNone {
		return p.confirmAddrs(ctx)
	}
	p.Look(ctx) // otherwise growth may ask for addresses on an ENI that an operator or another program has detached
	if sure, err := p.Resume(ctx); err != nil || sure {
		return err // if sure, Resume has confirmed addresses, which may be enough for the waiting ADDs
	}
	defer p.AskInAdvance(ctx)()
	s, err := p.DescribeInstance(ctx)
	if err != nil {
		return call.Explain(err)
	}
	if s, err = p.AskTags(ctx, s); err != nil {
		return err
	}
	if s, err = p.AskSubnets(ctx, s); err != nil {
		return err
	}
	switch {
	case p.Policy.Choice.ENI != "":
		return call.Explain(p.AttachChosen(ctx, s))
	case len(p.Policy.Choice.Addrs) > 0:
		return call.Explain(p.GrowChosen(ctx, s))
	}
	var reasons []error
	for _, at := range lease.Places(s, p.Policy, time.Now()) {
		err := p.FillENI(ctx, s, at)
		if err == nil {
			return nil
		}
		if !call.IsFull(err) && !call.GoesOn(err, at.Managed) {
			return call.Explain(err)
		}
		reasons = append(reasons, err)
	}
	if p.Policy.Provision == lease.ProvisionAssign {
		if p.KnowsMore(ctx, s) {
			return nil
		}
		reasons = append(reasons, errors.New(`no new ENI is created, because "provision" is "assign"`))
		return call.Explain(errors.Join(reasons...))
	}
	return creationError(reasons, p.AddENI(ctx, s))
}

// creationError returns the error of a growth that could not create an ENI. The text has the reasons why no existing
// ENI could get more addresses. The hint also covers EC2's refusals to change an existing ENI.
func creationError(reasons []error, err error) error {
	if err == nil {
		return nil
	}
	all := errors.Join(append(reasons, err)...)
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok {
		e = &plugin.Error{Code: plugin.CodeTryAgain, Hint: cmp.Or(aws.Hint(err), aws.Hint(all))}
	}
	hints := []string{e.Hint}
	for _, w := range reasons {
		if hint := aws.Hint(w); !call.IsFull(w) && hint != "" && !slices.Contains(hints, hint) {
			hints = append(hints, hint)
		}
	}
	return plugin.Errorf(e.Code, strings.Join(slices.DeleteFunc(hints, func(h string) bool { return h == "" }),
		"; or: "), "%w", all)
}

// confirmAddrs does the work of a growth if the provision is "none". If the registry was rebuilt, confirmAddrs compares
// the registry's unconfirmed addresses with EC2. If EC2 confirms no address, the error says why no address is free.
func (p *Pool) confirmAddrs(ctx context.Context) error {
	s, err := p.Registry.View()
	if err != nil {
		return err
	}
	if since, waits := p.Policy.Unconfirmed(s); waits {
		if sure, err := p.Resume(ctx); err != nil || sure {
			return err
		}
		return plugin.Errorf(plugin.CodeTryAgain, "wait for a minute: the runtime repeats the ADD",
			"the registry was rebuilt at %s, and its addresses serve no pods until EC2 has confirmed them",
			since.Format(time.TimeOnly))
	}
	if p.Policy.Choice.Chooses() {
		return plugin.Errorf(plugin.CodeRefused,
			`ask for what the ENIs of this node have, or set "provision" to "full"`,
			`this node does not have what the pod asks for, and does not ask EC2 for it, because "provision" is "none"`)
	}
	return plugin.Errorf(plugin.CodeTryAgain,
		`add addresses to the ENIs in the launch template, lower --max-pods of the kubelet, or set `+
			`"provision" to "assign"`,
		`%d addresses of this node are leased, and %d are cooling or not for this pod. `+
			`"provision" is "none", so the node does not ask EC2 for more`, s.Leases.Len(), s.Free.Len())
}
