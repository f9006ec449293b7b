// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"errors"
	"io/fs"
)

// checkProxy looks for kube-proxy's IPVS mode, by its link. IPVS routes a packet that it has
// rewritten again, as if the node had sent it. So the packet does not match the pod's rule. A
// backend beside the pod gets it from the veth, and answers by its ENI.
func (p *Node) checkProxy(context.Context) ([]Finding, error) {
	const link = "kube-ipvs0"
	_, err := p.pool.Host.LinkByName(link)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []Finding{{Severity: warning, About: link, Means: "kube-proxy is or was in IPVS mode: pods do not reach Services whose backend is a pod of this node, unless masqueradeAll is set; and backends see the node's address",
		Do: "run kube-proxy in nftables or iptables mode (docs/install.md). If it is in one of these modes already: ip link del " + link}}, err
}
