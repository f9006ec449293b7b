// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"context"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func freeIPs() *cli.Command {
	return &cli.Command{
		Name:  "free-ips",
		Usage: "List all currently unassigned AWS IP addresses",
		Description: `The metadata service lists these addresses, but neither this node nor a namespace on
it has them, and they are not reserved for a pod.` + cli.JSON("[] adapter ip"),
		Action: func(c *cli.Context) error {
			p, err := cli.OpenPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			rows, err := unboundAddrs(c.Context, p)
			if err != nil {
				return err
			}
			return cli.Table(c, rows)
		},
	}
}

// An unboundRow is an address that metadata shows on an ENI, and that neither the node nor a pod has.
type unboundRow struct {
	Adapter string     `json:"adapter"`
	Addr    netip.Addr `json:"ip"`
}

// unboundAddrs returns the addresses that neither the node nor a pod has, in the order in which metadata lists them.
func unboundAddrs(ctx context.Context, p *ipam.Pool) ([]unboundRow, error) {
	enis, err := p.Cloud.ENIs(ctx)
	if err != nil {
		return nil, err
	}
	names, err := view.LinkNames()
	if err != nil {
		return nil, err
	}
	s, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	own, err := view.Addrs(p.Host, "")
	if err != nil {
		return nil, err
	}
	bound := map[netip.Addr]bool{}
	for _, a := range own {
		bound[a.Addr] = true
	}
	used := lease.UsedAddrs(p.Host, lease.MACs(s)...)
	for a := range s.Leases.Keys() {
		bound[a] = true
	}
	var rows []unboundRow
	for _, e := range enis {
		for _, a := range e.Addrs {
			if !bound[a] && used.Of(e.MAC, a) == "" {
				rows = append(rows, unboundRow{names[e.MAC], a})
			}
		}
	}
	return rows, nil
}
