// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// checkAddresses looks for addresses of pods on the node's own links. With such an address,
// the node answers instead of the pod. amazon-ec2-net-utils, DHCP and cloud-init add them.
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
		means := "the address is on the link " + a.Dev +
			" of the node, but it is for pods: the next pod that gets it cannot be reached"
		if h.Leased() {
			means = "the address is on the link " + a.Dev + " of the node: the node answers instead of " + h.Owner()
		}
		found = append(found, Finding{Severity: severe, About: a.Prefix.Addr().String(), Means: means,
			Do: fmt.Sprintf("ip address del %v dev %s; then enable cni-links.service, so that no network manager of "+
				"the node configures the ENIs of pods", a.Prefix, a.Dev), fix: p.strip(a)})
	}
	return found, nil
}

// strip is a fix that removes an address from the node. If it is the first one of a subnet, the kernel also removes the
// others of that subnet. Such a removal could do harm, so doctor leaves it to people.
func (p *Node) strip(a nl.Addr) func(context.Context) (string, error) {
	if !a.Prefix.IsSingleIP() {
		return nil
	}
	return func(context.Context) (string, error) {
		return fmt.Sprintf("took %v from %s", a.Prefix, a.Dev), nl.Wiring{{NS: p.pool.Host, Object: a}}.Del()
	}
}
