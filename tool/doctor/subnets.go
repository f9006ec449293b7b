// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

// checkSubnets checks that the subnet of the next ENI has free addresses.
func (p *Node) checkSubnets(ctx context.Context) ([]Finding, error) {
	if p.config == nil {
		return nil, nil // checkConfig says so
	}
	var found []Finding
	for _, pool := range p.config.Policies() {
		if pool.Provision != lease.ProvisionFull {
			continue // EC2 says when the subnet of an ENI is full, and the node need not see subnets
		}
		about := "pool " + conf.PoolName(pool.Pool)
		fit, zone, err := view.PodSubnets(ctx, p.pool.Cloud, pool)
		if errors.Is(err, ipam.ErrNoSubnet) {
			found = append(found, Finding{Severity: severe, About: about, Means: err.Error(), Do: ipam.Hint(err)})
			continue
		}
		if err != nil {
			return found, err
		}
		free, v4 := 0, false
		for _, s := range fit {
			free += s.Free
			v4 = v4 || s.CIDR.IsValid()
		}
		few := max(p.state.Instance.IPv4PerENI, pool.Warm.Min, 16)
		switch {
		case v4 && free == 0:
			found = append(found, Finding{Severity: severe, About: about, Means: "its subnets in " + zone + " have no free address: " + subnetIDs(fit),
				Do: "add another subnet for pods to the VPC, with the tags in subnetTags"})
		case v4 && free < few:
			found = append(found, Finding{Severity: warning, About: about, Means: fmt.Sprintf("its subnets in %s have %d free addresses, fewer than one ENI can take: %s", zone, free, subnetIDs(fit)),
				Do: "add another subnet for pods to the VPC, with the tags in subnetTags"})
		}
	}
	return found, nil
}

func subnetIDs(subnets []aws.Subnet) string {
	var ids []string
	for _, s := range subnets {
		ids = append(ids, s.ID)
	}
	return strings.Join(ids, ", ")
}
