// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import "context"

// nodeadmUnit is the unit by which nodeadm of EKS configures an ENI. Its rules of udev start it.
const nodeadmUnit = "udev-net-manager@.service"

// checkNodeadm checks that nodeadm leaves the ENIs of pods alone. nodeadm lets systemd-networkd configure the ENIs that
// are attached before the node joins (awslabs/amazon-eks-ami, nodeadm/cmd/nodeadm-internal/udev).
func (p *Node) checkNodeadm(context.Context) ([]Finding, error) {
	if _, installed := p.lookUp("systemd/system", nodeadmUnit); !installed {
		return nil, nil
	}
	return p.unstopped(seizer{nodeadmUnit,
		"nodeadm gives each ENI of the first boot an address by DHCP, and a rule with preference 32765; a pod with " +
			"that address reaches no Service"}), nil
}
