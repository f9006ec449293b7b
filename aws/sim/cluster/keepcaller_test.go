// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/cluster"
)

// keepCaller checks that a pod of a node with keepCaller sees callers of a Service with externalTrafficPolicy Local as they
// are, also those that its routes lead to by its ENI.
func (w *world) keepCaller(t *testing.T) {
	var list object
	check(t, json.Unmarshal(conflist(t, "portmap"), &list))
	list["plugins"].([]any)[0].(object)["keepCaller"] = true
	n, err := w.AddNode(t.Context(), "keeps", cluster.NodeOptions{Conflist: must(json.Marshal(list))})
	check(t, err)
	t.Cleanup(func() { check(t, w.RemoveNode(context.Background(), n)) })
	check(t, w.NodesReady(t.Context()))
	w.apply(t, podOn("web", n.Name, server()), service("web", "web", "type", "NodePort", "externalTrafficPolicy", "Local"))
	w.ready(t, "web", 1)
	at := netip.AddrPortFrom(n.Addr(), w.serviceAddr(t, "web").nodeHTTP)
	seesHost(t, w.Master.NS, at, w.Master.Addr())
	seesHost(t, w.Peer.NS, at, w.Peer.Addr())
}
