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
		Description: `It searches the ENIs in the order of their device indexes. To the first ENI that can take
more addresses, it assigns addresses, which the next pods get. It skips ENIs for which
pods have asked, and ENIs that serve no pods by the configuration. Without --index, it
also skips ENIs whose device index is below "interfaceIndex" of the configuration. If the
configuration has a mistake, give --index:

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
			first, err := firstIndex(c)
			if err != nil {
				return err
			}
			p, err := cli.OpenPool(lease.Policy{MinIndex: first})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := cli.Working("ask EC2 for addresses")
			id, addrs, err := p.Allocate(c.Context, n, conf.Load(c.String("config")).Whole()...)
			stop()
			if err != nil {
				return err
			}
			eni, err := madeENIOf(p, id)
			if err != nil {
				return err
			}
			names, err := view.LinkNames()
			if err != nil {
				return err
			}
			got := allocateAnswer{names[eni.MAC], id, cli.List(addrs)}
			return cli.Answer(c, got, got.print)
		},
	}
}

// firstIndex returns the lowest device index at which allocate-first-available uses an ENI. If the node has no
// configuration, firstIndex returns 0, the index of the boot ENI.
func firstIndex(c *cli.Context) (int, error) {
	if c.IsSet("index") {
		return c.Int("index"), nil
	}
	first, err := conf.Load(c.String("config")).LowestIndex()
	if conf.Absent(err) && !c.IsSet("config") {
		return 0, nil
	}
	return first, err
}

type allocateAnswer struct {
	Iface string       `json:"iface"`
	ENI   string       `json:"id"`
	Addrs []netip.Addr `json:"ips"`
}

func (g allocateAnswer) print(w io.Writer) {
	for _, a := range g.Addrs {
		fmt.Fprintf(w, "allocated %s on %s\n", a, g.Iface)
	}
}
