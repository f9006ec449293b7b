// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// checkAddresses looks for addresses of pods on the node's own links. The node itself answers at such an address,
// instead of the pod. For example, amazon-ec2-net-utils, DHCP and cloud-init add such addresses.
func (p *Node) checkAddresses(context.Context) ([]Finding, error) {
	own, err := p.kernel.Addrs("")
	if err != nil {
		return nil, err
	}
	pods := p.podAddrs()
	var found []Finding
	for _, a := range own {
		h, ours := pods[a.Prefix.Addr()]
		if !ours {
			continue
		}
		means := "the node's link " + a.Dev +
			" has this address, but the address is for pods. The next pod with this address cannot be reached"
		if h.Leased() {
			means = "the node's link " + a.Dev + " has this address, so the node answers instead of " + h.Owner()
		}
		found = append(found, Finding{Severity: severe, About: a.Prefix.Addr().String(), Means: means,
			Do: fmt.Sprintf("run: ip address del %v dev %s. Then enable or restart cni-links.service, so that no "+
				"network manager of the node configures the ENIs of pods", a.Prefix, a.Dev),
			fix: p.addrFix(a), partly: true})
	}
	return found, nil
}

// addrFix returns a fix that removes a single address (/32, /128) from the node. For an address with a subnet, addrFix
// returns nil. If a fix removed the first address of a subnet, the kernel would also remove the other addresses of this
// subnet.
func (p *Node) addrFix(a nl.Addr) func(context.Context) (string, error) {
	if !a.Prefix.IsSingleIP() {
		return nil
	}
	return func(context.Context) (string, error) {
		return fmt.Sprintf("removed %v from %s", a.Prefix, a.Dev), nl.Wiring{{NS: p.pool.Host, Object: a}}.Del()
	}
}
