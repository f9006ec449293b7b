// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// keepCaller checks that with keepCaller a pod sees the callers of a Service with externalTrafficPolicy Local, even a
// caller that its routes reach by its ENI.
func (w *world) keepCaller(t *testing.T) {
	n := w.join(t, "keeps", cluster.NodeOptions{Conflist: edited(t, "portmap", object{"keepCaller": true})})
	w.apply(t, podOn("web", n.Name, server()), service("web", "web", "type", "NodePort",
		"externalTrafficPolicy", "Local"))
	w.ready(t, "web", 1)
	at := netip.AddrPortFrom(n.Addr(), w.serviceAddr(t, "web").nodeHTTP)
	seesHost(t, w.Master.NS, at, w.Master.Addr())
	seesHost(t, w.Peer.NS, at, w.Peer.Addr())
}
