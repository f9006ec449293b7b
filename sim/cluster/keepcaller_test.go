// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// keepCaller checks the key "keepCaller". A backend must see the addresses of its callers if its Service has
// externalTrafficPolicy Local. This also holds for a caller to which the backend's routes lead directly, through the
// ENI of the backend.
func (w *world) keepCaller(t *testing.T) {
	n := w.join(t, "keeps", cluster.NodeOptions{Conflist: edited(t, "portmap", object{"keepCaller": true})})
	w.apply(t, podOn("web", n.Name, server()), service("web", "web", "type", "NodePort",
		"externalTrafficPolicy", "Local"))
	w.ready(t, "web", 1)
	at := netip.AddrPortFrom(n.Addr(), w.serviceAddr(t, "web").nodeHTTP)
	seesHost(t, w.Master.NS, at, w.Master.Addr())
	seesHost(t, w.Peer.NS, at, w.Peer.Addr())
}
