// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// flushConntrack deletes all entries of a namespace's connection tracker. The real kube-proxy deletes only entries of
// UDP.
//
// The kernel applies NAT rules only to the first packet of a connection, and uses the connection's entry for later
// packets. A client may use a source port again. Without flushConntrack, the old entry would then apply to the client's
// datagrams. For two minutes after the removal of the rules, these datagrams would go to an old backend. For 30 seconds
// after [Load], these datagrams would go to no backend.
func flushConntrack(n *nl.NS) error {
	return n.Do(func() error {
		if err := netlink.ConntrackTableFlush(netlink.ConntrackTable); err != nil { // of all families
			return fmt.Errorf("flush of conntrack: %w", err)
		}
		return nil
	})
}
