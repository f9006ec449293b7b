// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

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
		Usage: "List ENIs that differ from the configuration, or give new pods no addresses of the named ENIs",
		Description: `Without arguments, it lists ENIs whose security groups or subnet do not fit the
configuration. It also lists ENIs that drain already. With arguments, it drains the named
ENIs: new pods get no addresses of these ENIs, and running pods keep their addresses. When
the last pod of a named ENI has ended, registry-gc deletes the ENI, if this node has
created the ENI and "provision" is "full". Remove all other drained ENIs by
remove-interface. The instance needs a free slot for the ENI of new pods.

It refuses the boot ENI, and ENIs for which a pod has asked. With --undo, it also
refuses an ENI that a process has begun to delete. The registry has the mark of a
drained ENI, so a boot removes the mark. If a pool has "subnetTags", the
command asks EC2 for the tags of the subnets. If the role does not permit this call, the
command compares only the security groups.` +
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
					return setDraining(s, ids, retire)
				}); err != nil {
					return err
				}
			}
			st, err := p.Registry.View()
			if err != nil {
				return err
			}
			why, err := misfitReasons(c, p, st, conflists)
			if len(ids) == 0 {
				if err != nil {
					return err
				}
				return cli.Table(c, drainRows(st, slices.Sorted(maps.Keys(st.ENIs)), why, true))
			}
			// Only warn of an error, because the command has already changed the draining marks.
			if err != nil {
				slog.Warn("the ENIs are not compared with the configuration", "error", err)
			}
			return cli.Table(c, drainRows(st, ids, why, false))
		},
	}
}

// setDraining marks the ENIs as draining, or removes the mark if retire is false. After an error, the caller must not
// write the state.
func setDraining(s *registry.State, ids []string, retire bool) error {
	for _, id := range ids {
		e, known := s.ENIs[id]
		switch {
		case !known:
			return cli.Hint(fmt.Errorf("%s is no ENI of this node", id), "see "+cli.Name+" status")
		case e.IsBoot():
			return fmt.Errorf("%s is the boot ENI of this node, so it cannot drain", id)
		case e.OnRequest:
			return fmt.Errorf("%s is an ENI for which pods ask, so no other pods get its addresses anyway", id)
		case !retire && e.Draining:
			return cli.Hint(fmt.Errorf("%s cannot serve pods again, because a process has begun to delete it", id),
				"wait for the next "+cli.Name+" registry-gc. If the ENI is still attached then, run the command again")
		}
		e.Retired = retire
		s.ENIs[id] = e
	}
	return nil
}

// A drainRow is an ENI. Draining is true if an operator drains the ENI, or if a process has begun to delete it. Why is
// the reason why the ENI differs from the configuration.
type drainRow struct {
	ID       string `json:"id"`
	Iface    string `json:"iface"`
	Pool     string `json:"pool"`
	Pods     int    `json:"pods"`
	Draining bool   `json:"draining"`
	Why      string `json:"why"` // "": the ENI does not differ
}

// drainRows returns a row for each ENI in ids. reasons has a text for each ENI that differs from the configuration. If
// onlyDiffering is true, drainRows returns rows only for draining ENIs, and for ENIs that differ.
func drainRows(s *registry.State, ids []string, reasons map[string]string, onlyDiffering bool) (rows []drainRow) {
	for _, id := range ids {
		e, known := s.ENIs[id]
		draining := e.Retired || e.Draining
		if !known || onlyDiffering && (!isReplaceable(e) || !draining && reasons[id] == "") {
			continue
		}
		row := drainRow{id, e.Link, conf.PoolName(e.Pool), 0, draining, reasons[id]}
		for _, l := range s.Leases.All() {
			if l.ENI == id {
				row.Pods++
			}
		}
		rows = append(rows, row)
	}
	return rows
}

// isReplaceable reports whether a new ENI of the pool could replace an ENI. No ENI can replace the boot ENI, an ENI on
// request or a foreign ENI.
func isReplaceable(e registry.ENI) bool { return !e.IsBoot() && !e.OnRequest && !e.Foreign }

// misfitReasons returns why ENIs do not fit the configuration, by the ID of the ENI. misfitReasons checks these ENIs by
// the rules for ENIs that an operator has attached. For an ENI that fits, the text is "".
//
// The security groups come from metadata. If they fit, and the tags of the subnets matter, misfitReasons asks EC2 for
// these tags. If the role does not permit the EC2 call, the ENI counts as fitting.
func misfitReasons(
	c *cli.Context, p *ipam.Pool, s *registry.State, conflists *conf.Conflists,
) (reasons map[string]string, _ error) {
	i, err := p.Cloud.Instance(c.Context)
	if err != nil {
		return nil, err
	}
	enis, err := p.Cloud.ENIs(c.Context)
	if err != nil {
		return nil, err
	}
	reasons = map[string]string{}
	tags := sync.OnceValues(func() (map[string]map[string]string, error) {
		return subnetTags(c, p.Cloud, enis, i.Zone)
	})
	for _, e := range enis {
		known, ok := s.ENIs[e.ID]
		if !ok || !isReplaceable(known) {
			continue
		}
		known.Groups, known.SubnetTags, known.PoolUnknown = e.SecurityGroups, nil, false
		if conflists.Unclear(known) {
			all, err := tags()
			if err != nil {
				return nil, err
			}
			if known.SubnetTags = all[e.Subnet]; all == nil {
				continue
			}
		}
		reasons[e.ID] = conflists.Misfit(known)
	}
	return reasons, nil
}

// subnetTags asks EC2 for the subnets of a zone in the VPCs of the ENIs. It returns the tags of each subnet, by the ID
// of the subnet. If the role does not permit the EC2 call, the result is nil.
func subnetTags(
	c *cli.Context, cloud *aws.Client, enis []aws.ENI, zone string,
) (map[string]map[string]string, error) {
	tags := map[string]map[string]string{}
	for _, e := range enis {
		if _, asked := tags[e.Subnet]; asked {
			continue
		}
		subnets, err := cloud.Subnets(c.Context, e.VPC, zone)
		if aws.NotAllowed(err) {
			slog.Warn("the role does not allow ec2:DescribeSubnets, so only the security groups are compared")
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, n := range subnets {
			tags[n.ID] = n.Tags
		}
	}
	return tags, nil
}
