// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/urfave/cli/v2"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

func allocate() *cli.Command {
	return &cli.Command{
		Name:  "allocate-first-available",
		Usage: "Allocate a private IP on the first available interface",
		Description: `It assigns addresses to the first ENI, by device index, that has room. The
next pods find them:

    ` + Name + ` allocate-first-available --index=1 --ip_batch_size=10`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "index", Usage: "begin with the ENI at device index `N`; 0 is the boot ENI"},
			batchFlag(),
		},
		Action: func(c *cli.Context) error {
			n, err := batch(c)
			if err != nil {
				return err
			}
			p, err := openPool(lease.Policy{MinIndex: c.Int("index")})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := working("ask EC2 for addresses")
			id, addrs, err := p.Allocate(c.Context, n)
			stop()
			if err != nil {
				return err
			}
			eni, err := describe(p, id)
			if err != nil {
				return err
			}
			names, err := linkNames()
			if err != nil {
				return err
			}
			got := allocated{names[eni.MAC], id, list(addrs)}
			return answer(c, got, got.print)
		},
	}
}

// allocated is what allocate-first-available got.
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
