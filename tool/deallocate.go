// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package tool

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

func deallocate() *cli.Command {
	return &cli.Command{
		Name:  "deallocate",
		Usage: "Deallocate a private IP",
		Description: `It unassigns the addresses from this instance's ENIs. It refuses an address that a
pod has, and the primary address of an ENI. If it refuses one address, it unassigns
none. If EC2 does not answer, repeat the command, which then finishes the release. The
next registry-gc also finishes the release, unless a network of the node has
"provision": "none". For IPv6 addresses, the role needs ec2:UnassignIpv6Addresses. iam-policy prints this
permission only if pods may choose addresses.` + cli.JSON("deallocated"),
		ArgsUsage: "IP...",
		Action: func(c *cli.Context) error {
			var addrs []netip.Addr
			for _, arg := range c.Args().Slice() {
				a, err := netip.ParseAddr(arg)
				if err != nil {
					return cli.Misuse(c, "Invalid IP: please specify a valid IP: %w", err)
				}
				addrs = append(addrs, a)
			}
			if len(addrs) == 0 {
				return cli.Misuse(c, "want at least one address to release")
			}
			p, err := cli.OpenPool(lease.Policy{})
			if err != nil {
				return err
			}
			defer p.Close()
			stop := cli.Working("release addresses")
			gone, err := p.Deallocate(c.Context, addrs...)
			stop()
			if err != nil {
				err = fmt.Errorf("deallocation failed: %w", err)
			}
			if err != nil && len(gone) == 0 {
				return err
			}
			return errors.Join(err, cli.Answer(c, map[string][]netip.Addr{"deallocated": gone}, func(io.Writer) {}))
		},
	}
}
