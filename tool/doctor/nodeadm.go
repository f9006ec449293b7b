// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import "context"

// nodeadmUnit is the unit by which nodeadm of EKS configures an ENI. The udev rules of nodeadm start this unit.
const nodeadmUnit = "udev-net-manager@.service"

// checkNodeadm checks that nodeadm does not configure the ENIs of pods. Before the node joins its cluster, nodeadm
// makes systemd-networkd configure all attached ENIs (awslabs/amazon-eks-ami, nodeadm/cmd/nodeadm-internal/udev).
func (p *Node) checkNodeadm(context.Context) ([]Finding, error) {
	if _, installed := p.lookUp("systemd/system", nodeadmUnit); !installed {
		return nil, nil
	}
	return p.seizerFindings(seizer{nodeadmUnit,
		"at the first boot, nodeadm starts DHCP on each ENI, and adds a rule with preference 32765 for the ENI's " +
			"address. A pod with this address reaches no Service"}), nil
}
