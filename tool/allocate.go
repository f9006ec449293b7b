// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/view"
)

func allocate() *cli.Command {
	return &cli.Command{
		Name:  "allocate-first-available",
		Usage: "Allocate a private IP on the first available interface",
		Description: `It assigns addresses to the first ENI, by device index, that can take more. The next
pods use them. It skips ENIs for which pods have asked. Without --index, it also
skips ENIs below interfaceIndex of the configuration:

    ` + Name + ` allocate-first-available --index=1 --ip_batch_size=10` + cli.JSON("iface id ips"),
		Flags: []cli.Flag{
			conf.Flag(),
			&cli.IntFlag{Name: "index", DefaultText: "interfaceIndex",
				Usage: "begin with the ENI at device index `N`; 0 is the boot ENI"},
			cli.BatchFlag(),
		},
		Action: func(c *cli.Context) error {
			n, err := cli.Batch(c)
			if err != nil {
				return err
			}
			first := c.Int("index")
			if !c.IsSet("index") {
				first = conf.Load(c.String("config")).LowestIndex()
			}
			p, err := cli.OpenPool(lease.Policy{MinIndex: first})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := cli.Working("ask EC2 for addresses")
			id, addrs, err := p.Allocate(c.Context, n)
			stop()
			if err != nil {
				return err
			}
			eni, err := describe(p, id)
			if err != nil {
				return err
			}
			names, err := view.LinkNames()
			if err != nil {
				return err
			}
			got := allocated{names[eni.MAC], id, cli.List(addrs)}
			return cli.Answer(c, got, got.print)
		},
	}
}

// allocated is the answer of allocate-first-available.
type allocated struct {
	Iface string       `json:"iface"`
	ENI   string       `json:"id"`
	Addrs []netip.Addr `json:"ips"`
}

func (g allocated) print(w io.Writer) {
	for _, a := range g.Addrs {
		fmt.Fprintf(w, "allocated %s on %s\n", a, g.Iface)
	}
}
