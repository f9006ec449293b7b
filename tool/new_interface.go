// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

func newInterface() *cli.Command {
	return &cli.Command{
		Name:  "new-interface",
		Usage: "Create a new interface",
		Description: `For cloud-init, so that the first pods need not wait for EC2:

    ` + Name + ` new-interface --subnet_filter=kubernetes_kubelet=true \
        --ip_batch_size=10 sg-1234 sg-5678

It creates an ENI with the security groups, attaches it, waits for its link, and
sets the link up. The next pods use its addresses, unless its device index is below
interfaceIndex of their configuration. registry-gc never deletes this ENI. If the
command was interrupted, repeat it within 15 minutes: it continues with the same
ENI. A further run creates another ENI if the first run has succeeded. This may also
happen if the registry was lost, for example by a reboot.` + cli.JSON("iface mac id index card boot subnet subnet_cidr secgrps vpc ips vpc_cidrs"),
		ArgsUsage: "SECURITY-GROUP...",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "subnet_filter",
				Usage: "use a subnet that has these tags, `KEY=VALUE[,KEY=VALUE...]`"},
			&cli.IntFlag{Name: "index", Value: 1,
				Usage: "attach the ENI at device index `N` or the next free index; use interfaceIndex of the conflist"},
			cli.BatchFlag(),
		},
		Action: func(c *cli.Context) error {
			spec := more.ENISpec{SecurityGroups: c.Args().Slice(), MinIndex: c.Int("index")}
			var err error
			if spec.MinIndex < 1 {
				return cli.Misuse(c, "--index %d: want 1 or more, because the boot ENI is at 0", spec.MinIndex)
			}
			if spec.Addrs, err = cli.Batch(c); err != nil {
				return err
			}
			if spec.Tags, err = parseFilter(c.String("subnet_filter")); err != nil {
				return cli.Misuse(c, "%w", err)
			}
			if len(spec.SecurityGroups) == 0 {
				return cli.Misuse(c, "want at least one security group")
			}
			p, err := cli.OpenPool(lease.Policy{MinIndex: spec.MinIndex})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := cli.Working("make an ENI, attach it, and wait for its link")
			id, link, err := p.Provision(c.Context, spec)
			stop()
			if err != nil {
				return err
			}
			made, err := madeENIOf(p, id)
			if err != nil {
				return err
			}
			made.Iface, made.SecurityGroups = link, spec.SecurityGroups
			return cli.Answer(c, made, made.print)
		},
	}
}

// A madeENI is an ENI that new-interface has created. It has the fields that eniif shows, and the CIDRs of the ENI's
// VPC.
type madeENI struct {
	eniRow
	VPCCIDRs []netip.Prefix `json:"vpc_cidrs"` // the first is the VPC's primary CIDR
}

// madeENIOf returns the registry's data about an ENI.
func madeENIOf(p *ipam.Pool, id string) (madeENI, error) {
	s, err := p.Registry.View()
	if err != nil {
		return madeENI{}, err
	}
	e, ok := s.ENIs[id]
	if !ok || len(e.Addrs) == 0 {
		return madeENI{}, fmt.Errorf("while this command ran, an operator or another program has removed %s", id)
	}
	row := eniRow{MAC: e.MAC, ID: id, Index: e.Index, Card: e.Card, Subnet: e.Subnet, CIDR: e.CIDR, VPC: e.VPC,
		Addrs: cli.List(e.Addrs)}
	return madeENI{row, cli.List(s.VPCs[e.VPC].CIDRs)}, nil
}

// print writes the ENI in the format of the original tool. That tool used Go's format for a pointer to a struct.
func (e madeENI) print(w io.Writer) {
	var primary netip.Prefix
	if len(e.VPCCIDRs) > 0 {
		primary = e.VPCCIDRs[0]
	}
	fmt.Fprintf(w, "&{%s %s %s %d %v %s %s %s %s %v %v}\n",
		e.ID, e.MAC, e.Iface, e.Index, e.Addrs, e.Subnet, cli.Cell(e.CIDR), e.VPC, cli.Cell(primary), e.VPCCIDRs,
		e.SecurityGroups)
}

// parseFilter returns the tags that --subnet_filter names. The parameter "text" is the value of this flag, in the form
// KEY=VALUE,KEY=VALUE.
func parseFilter(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	tags := map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			//lint:ignore ST1005 the original's words
			return nil, fmt.Errorf("Invalid filter specification %q: want key=value[,key=value...]", text)
		}
		tags[key] = value
	}
	return tags, nil
}
