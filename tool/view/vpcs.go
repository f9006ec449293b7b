// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"context"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
)

// EachVPC calls the function "report" once for each ENI, with the name of the ENI's link and the CIDRs of the ENI's
// VPC. To get the CIDRs, EachVPC calls cidrsOf once for each VPC.
func EachVPC(ctx context.Context, cloud *aws.Client, cidrsOf func(context.Context, string) ([]netip.Prefix, error),
	report func(iface string, e aws.ENI, cidrs []netip.Prefix)) error {
	enis, err := cloud.ENIs(ctx)
	if err != nil {
		return err
	}
	names, err := LinkNames()
	if err != nil {
		return err
	}
	known := map[string][]netip.Prefix{}
	for _, e := range enis {
		if _, ok := known[e.VPC]; !ok {
			if known[e.VPC], err = cidrsOf(ctx, e.VPC); err != nil {
				return err
			}
		}
		report(names[e.MAC], e, known[e.VPC])
	}
	return nil
}

// Lacking returns, for each VPC of the ENIs, the CIDRs that EC2 shows and the metadata service does not. On the first
// m5 and c5 instances, the metadata service left out some CIDRs.
func Lacking(ctx context.Context, cloud *aws.Client, enis []aws.ENI) (map[string][]netip.Prefix, error) {
	known, lacking := map[string][]netip.Prefix{}, map[string][]netip.Prefix{}
	for _, e := range enis {
		if _, asked := known[e.VPC]; !asked {
			cidrs, err := cloud.VPCCIDRs(ctx, e.VPC)
			if err != nil {
				return nil, err
			}
			known[e.VPC] = cidrs
		}
		for _, c := range known[e.VPC] {
			if !slices.Contains(e.VPCCIDRs, c) && !slices.Contains(lacking[e.VPC], c) {
				lacking[e.VPC] = append(lacking[e.VPC], c)
			}
		}
	}
	return lacking, nil
}
