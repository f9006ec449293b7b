// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"errors"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// zoneSubnets lists the subnets in which this instance could have an ENI: those of the boot
// ENI's VPC in the instance's zone, with the most free addresses first.
func zoneSubnets(ctx context.Context, cloud *aws.Client) (all []aws.Subnet, zone string, err error) {
	i, err := cloud.Instance(ctx)
	if err != nil {
		return nil, "", err
	}
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		return nil, "", err
	}
	boot := slices.IndexFunc(enis, func(e aws.ENI) bool { return e.MAC == i.MAC })
	if boot < 0 {
		return nil, "", errors.New("metadata does not list the boot ENI " + i.MAC)
	}
	all, err = cloud.Subnets(ctx, enis[boot].VPC, i.Zone)
	return all, i.Zone, err
}

// carriesTags tells whether a resource has all of the tags.
func carriesTags(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}
