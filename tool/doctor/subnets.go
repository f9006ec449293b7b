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
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// checkSubnets returns a finding if no subnet fits a pool's next ENI. It also returns a finding if the fitting subnets
// together have no free IPv4 addresses, or only a few.
func (p *Node) checkSubnets(ctx context.Context) ([]Finding, error) {
	var found []Finding
	seen := map[string]bool{}
	for _, pool := range p.poolPolicies() { // if a mistake leaves no pools, checkConfig reports the mistake
		key := fmt.Sprint(pool.Pool, pool.SubnetTags, pool.Families, pool.Warm) // fmt sorts keys of maps
		if pool.Provision != lease.ProvisionFull || seen[key] {
			// Do not ask EC2 about a pool that gets no new ENIs, because the role may lack the permission. If a subnet
			// of this pool is full, checkRefusals reports that.
			continue
		}
		seen[key] = true
		about := "pool " + conf.PoolName(pool.Pool)
		if len(p.ours) > 1 {
			about += " of " + pool.network
		}
		all, vpc, zone, err := p.cloud.subnets(ctx)
		var fit []aws.Subnet
		if err == nil {
			fit, err = more.Fit(all, vpc, zone, pool.SubnetTags, pool.Families)
		}
		if errors.Is(err, more.ErrNoSubnet) {
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
		if !v4 || free >= few {
			continue
		}
		f := Finding{Severity: warning, About: about,
			Means: fmt.Sprintf("the pool's subnets in %s (%s) together have only %d free IPv4 addresses, so new pods "+
				"may soon get no address", zone, subnetIDs(fit), free),
			Do: "add another subnet for pods to the VPC, with the tags in subnetTags"}
		if free == 0 {
			f.Severity = severe
		}
		found = append(found, f)
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
