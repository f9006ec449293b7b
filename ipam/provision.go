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

// Provision creates an ENI, attaches it and sets its link up. Its addresses are free then, and no collection deletes
// it. If Provision fails with an ID, the ENI exists, but its link is not up. If an earlier Provision with the same spec
// was interrupted, its ENI is used.
//
// An ENI counts as the answer to one Provision. So it has a mark until its link is up. The lock shows that the process
// of the mark has ended.
func (p *Pool) Provision(ctx context.Context, spec more.ENISpec) (id, link string, err error) {
	return p.provision(ctx, spec, p.LinkUp)
}

// provision is Provision for a caller that knows how to set a link up.
func (p *Pool) provision(
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
	return id, link, p.Registry.Change(ctx, func(s *registry.State) { book.EndProvision(s, id) })
}
