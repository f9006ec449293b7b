// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// Provision creates an ENI, attaches it, and brings up its link. The addresses of the ENI are then free, and no
// collection deletes the ENI. If Provision returns an error and an ID, the ENI is attached, but perhaps its link is not
// up. If there is an ENI of an interrupted Provision with the same spec, Provision continues with this ENI.
//
// Two Provisions must never return the same ENI. So the registry marks the ENI of an unfinished Provision (Provisioning
// of registry.ENI). A Provision that returns its ENI removes the mark. Only one Provision runs at a time, so the writer
// of an earlier mark has ended.
func (p *Pool) Provision(ctx context.Context, spec more.ENISpec) (id, link string, err error) {
	return p.provisionWith(ctx, spec, p.LinkUp)
}

// provisionWith does what Provision does, but calls the function linkUp to bring up the link.
func (p *Pool) provisionWith(
	ctx context.Context, spec more.ENISpec, linkUp func(ctx context.Context, id string) (string, error),
) (id, link string, err error) {
	unlock, err := p.Registry.Lock(ctx, "provision")
	if err != nil {
		return "", "", err
	}
	defer unlock()
	if id, err = p.ENIFor(ctx, spec); err != nil {
		return "", "", err
	}
	if link, err = linkUp(ctx, id); err != nil {
		return id, "", fmt.Errorf("%s is attached, but its link is not up: %w", id, err)
	}
	if err := p.FinishNamed(ctx, id); err != nil {
		return id, link, err
	}
	return id, link, p.Registry.Change(ctx, func(s *registry.State) { book.EndProvision(s, id) })
}
