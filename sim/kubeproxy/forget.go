// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// flushConntrack deletes all entries of a namespace's connection tracker, as the real kube-proxy deletes the entries of
// UDP.
//
// NAT rules see only the first packet of a connection. Later packets follow the entry of the connection. Without
// flushConntrack, datagrams from a port that was used before would go to the wrong place: to an old backend for two
// minutes after unload, and to no backend for 30 seconds after Load.
func flushConntrack(n *nl.NS) error {
	return n.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil { // of all families
			return fmt.Errorf("flush of conntrack: %w", err)
		}
		return nil
	})
}
