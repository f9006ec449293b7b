// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// forget deletes all entries of a namespace's connection tracker. NAT rules see only the first packet of a connection.
// Later packets follow the entry of the connection. Without forget, the entries of UDP would outlive the rules. After a
// removal of rules, a datagram from a port that was used before would go to an old backend for two minutes. After the
// first load of rules, such a datagram would go to no backend for 30 seconds. The real kube-proxy also deletes such
// entries.
func forget(n *nl.NS) error {
	return n.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil { // of all families
			return fmt.Errorf("flush of conntrack: %w", err)
		}
		return nil
	})
}
