// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// forget empties a namespace's connection tracker. Rules of nat see only a connection's first packet. Without forget, a
// datagram from a port that was used before would for two minutes go to a backend of rules that were removed. Before
// there were rules, a datagram to a ClusterIP went to no backend, and for 30 seconds others from its port would follow
// it. kube-proxy also deletes such entries.
func forget(n *nl.NS) error {
	return n.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil { // of all families
			return fmt.Errorf("flush of conntrack: %w", err)
		}
		return nil
	})
}
