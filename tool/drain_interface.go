// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

func drainInterface() *cli.Command {
	return &cli.Command{
		Name:  "drain-interface",
		Usage: "List ENIs that differ from the configuration; with ENIs, give new pods no address of these",
		Description: `Without an ENI, it lists ENIs with other security groups or another subnet than the
configuration has. It also lists ENIs that drain already. With ENIs, new pods get no
address of these ENIs from now on, and running pods keep their addresses. When the
last pod of such an ENI has ended, registry-gc deletes the ENI if this node has
created it. Remove other ENIs by remove-interface. The instance needs a free slot
for the ENI of new pods.

It refuses the boot ENI, and ENIs for which a pod has asked. The registry has the
mark of a drained ENI, so a boot removes the mark. It asks EC2 for the subnets.` +
			cli.JSON("[] id iface pool pods draining why"),
		ArgsUsage: "[ENI...]",
		Flags: []cli.Flag{conf.Flag(),
			&cli.BoolFlag{Name: "undo", Usage: "new pods may get addresses of the ENIs again"}},
		Action: func(c *cli.Context) error {
			ids, retire := c.Args().Slice(), !c.Bool("undo")
			if !retire && len(ids) == 0 {
				return cli.Misuse(c, "--undo needs the IDs of the ENIs")
			}
			conflists := conf.Load(c.String("config"))
			if _, err := conflists.All(); err != nil && len(ids) == 0 {
				return err
			}
			p, err := cli.OpenPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			if len(ids) > 0 {
				if err := p.Registry.Update(c.Context, func(s *registry.State) error {
					return drain(s, ids, retire)
				}); err != nil {
					return err
				}
			}
			rows, err := drainRows(c, p, conflists)
			if err != nil {
				return err
			}
			if len(ids) > 0 {
				rows = slices.DeleteFunc(rows, func(r drainRow) bool { return !slices.Contains(ids, r.ID) })
			}
			return cli.Table(c, rows)
		},
	}
}

// drain marks the ENIs as draining. If retire is false, it removes the mark. After an error, the caller must not write
// the state.
func drain(s *registry.State, ids []string, retire bool) error {
	for _, id := range ids {
		e, known := s.ENIs[id]
		switch {
		case !known:
			return cli.Hint(fmt.Errorf("%s is no ENI of this node", id), "see "+cli.Name+" status")
		case e.IsBoot():
			return fmt.Errorf("%s is the boot ENI of this node, so it cannot drain", id)
		case e.OnRequest:
			return fmt.Errorf("%s is an ENI for which pods ask, so no other pods get its addresses anyway", id)
		}
		e.Retired = retire
		s.ENIs[id] = e
	}
	return nil
}

// A drainRow is an ENI that drains, or that differs from the configuration.
type drainRow struct {
	ID       string `json:"id"`
	Iface    string `json:"iface"`
	Pool     string `json:"pool"`
	Pods     int    `json:"pods"`
	Draining bool   `json:"draining"`
	Why      string `json:"why"` // "": the ENI does not differ
}

// drainRows compares the ENIs of the node with the configuration. Metadata has the security groups of the ENIs, and EC2
// has the tags of their subnets.
func drainRows(c *cli.Context, p *ipam.Pool, conflists *conf.Conflists) ([]drainRow, error) {
	s, err := p.Registry.View()
	if err != nil {
		return nil, err
	}
	i, err := p.Cloud.Instance(c.Context)
	if err != nil {
		return nil, err
	}
	enis, err := p.Cloud.ENIs(c.Context)
	if err != nil {
		return nil, err
	}
	var rows []drainRow
	tags := map[string]map[string]string{}
	for _, e := range enis {
		if tags[e.Subnet] == nil {
			subnets, err := p.Cloud.Subnets(c.Context, e.VPC, i.Zone)
			if err != nil {
				return nil, err
			}
			for _, n := range subnets {
				tags[n.ID] = n.Tags
			}
		}
		known, ok := s.ENIs[e.ID]
		if !ok || known.IsBoot() || known.OnRequest || known.Foreign {
			continue
		}
		if row := drainRowOf(s, e, known, tags[e.Subnet], conflists); row.Draining || row.Why != "" {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// drainRowOf returns the row of an ENI. The row's Why says why pods would get no address of the ENI if an operator had
// attached the ENI.
func drainRowOf(
	s *registry.State, e aws.ENI, known registry.ENI, subnet map[string]string, conflists *conf.Conflists,
) drainRow {
	row := drainRow{e.ID, known.Link, conf.PoolName(known.Pool), 0, known.Retired, ""}
	for _, l := range s.Leases.All() {
		if l.ENI == e.ID {
			row.Pods++
		}
	}
	known.Groups, known.SubnetTags = e.SecurityGroups, subnet
	row.Why = conflists.Misfit(known)
	return row
}
