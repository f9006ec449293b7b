// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os"
)

// The helper of Debian 11's cloud images, and the rule of udev that starts it.
const (
	ifupdownHelper = "/etc/network/cloud-ifupdown-helper"
	ifupdownRule   = "75-cloud-ifupdown.rules"
)

// checkIfupdown checks that the helper of Debian's cloud images does not configure the ENIs of pods. The helper writes
// a stanza with DHCP for each new link, and starts ifup@.service.
func (p *Node) checkIfupdown(context.Context) ([]Finding, error) {
	if _, err := os.Stat(p.pathOf(ifupdownHelper)); err != nil {
		return nil, nil
	}
	if _, rule := p.lookUp("udev/rules.d", ifupdownRule); !rule {
		return nil, nil
	}
	return p.seizerFindings(seizer{ifupdownHelper,
		"this script starts a DHCP client on the link of each new ENI. The node then gets the primary address of an " +
			"ENI of pods, and a second default route"}), nil
}
