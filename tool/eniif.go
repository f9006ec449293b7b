// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func eniif() *cli.Command {
	return &cli.Command{
		Name:  "eniif",
		Usage: "List all ENI interfaces and their setup with addresses",
		Description: "The boot ENI comes first. The command asks the metadata service, which may be some\nseconds " +
			"behind EC2." +
			cli.JSON("[] iface mac id index card boot subnet subnet_cidr secgrps vpc ips"),
		Flags: []cli.Flag{&cli.BoolFlag{Name: "boot", Usage: "list only the boot ENI"},
			&cli.BoolFlag{Name: "pods",
				Usage: "list only the ENIs that may serve pods; without a conflist, list all ENIs"},
			conf.Flag()},
		Action: func(c *cli.Context) error {
			enis, err := aws.New(aws.Options{}).ENIs(c.Context)
			if err != nil {
				return err
			}
			names, err := view.LinkNames()
			if err != nil {
				return err
			}
			conflists := conf.Load(c.String("config"))
			var rows []eniRow
			for _, e := range enis {
				if c.Bool("boot") && !e.Boot || c.Bool("pods") && !mayServe(conflists, e) {
					continue
				}
				rows = append(rows, eniRow{
					names[e.MAC], e.MAC, e.ID, e.Index, e.Card, e.Boot, e.Subnet, e.CIDR, cli.List(e.SecurityGroups),
					e.VPC, cli.List(e.Addrs),
				})
			}
			return cli.Table(c, rows)
		},
	}
}

// mayServe reports whether the key interfaceIndex of a conflist allows pods to get addresses of an ENI. If no conflist
// can be read, mayServe returns true.
func mayServe(conflists *conf.Conflists, e aws.ENI) bool {
	var policies []lease.Policy
	for _, l := range conflists.Ours() {
		if l.IPAM != nil {
			policies = append(policies, l.IPAM.Policies()...)
		}
	}
	return len(policies) == 0 || slices.ContainsFunc(policies, func(p lease.Policy) bool {
		return p.Serves(registry.ENI{Index: e.Index, Card: e.Card, Boot: e.Boot})
	})
}

type eniRow struct {
	Iface          string       `json:"iface"` // empty if the node has no link of the ENI
	MAC            string       `json:"mac"`
	ID             string       `json:"id"`
	Index          int          `json:"index" head:"-"`
	Card           int          `json:"card" head:"-"`
	Boot           bool         `json:"boot" head:"-"` // it is the boot ENI
	Subnet         string       `json:"subnet"`
	CIDR           netip.Prefix `json:"subnet_cidr"`
	SecurityGroups []string     `json:"secgrps"`
	VPC            string       `json:"vpc"`
	Addrs          []netip.Addr `json:"ips"`
}
