// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// localDNS is where NodeLocal DNSCache listens on each node (kubernetes.io, "Using NodeLocal DNSCache in Kubernetes
// Clusters").
var localDNS = netip.MustParseAddr("169.254.20.10")

// nodeLocalDNS runs a name server on each node, at an address that is the same on each node. The pods must reach the
// name server of their node. In a real cluster, the program node-cache is CoreDNS, and also makes a dummy link with the
// address. Here the test makes the link.
func (w *world) nodeLocalDNS(t *testing.T) {
	w.apply(t, deployment("web", 2, server()), service("web", "web"))
	w.apply(t, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta("node-local-dns"),
		"data": object{"Corefile": fmt.Sprintf(
			"cluster.local {\n\tbind %s\n\tcache 30\n\tforward . %s {\n\t\tforce_tcp\n\t}\n}\n", localDNS,
			cluster.DNS)}})
	for _, n := range w.Nodes {
		w.addLink(t, n)
		w.apply(t, podOn("node-local-dns-"+n.Name, n.Name, localServer()))
	}
	for _, p := range w.ready(t, "web", 2) {
		await(t, func() error {
			out, err := w.sh(p, fmt.Sprintf("dig +short +timeout=2 @%s web.default.svc.cluster.local", localDNS))
			if want := w.serviceAddr(t, "web").addr.String(); err == nil && strings.TrimSpace(out) != want {
				err = fmt.Errorf("%s on %s: web is %q, want %s", p.name, p.node, out, want)
			}
			return err
		})
	}
}

func (w *world) addLink(t *testing.T, n *cluster.Node) {
	t.Helper()
	const link = "nodelocaldns"
	_, err := n.Run(t.Context(), "ip", "link", "add", link, "type", "dummy")
	check(t, err)
	t.Cleanup(func() {
		_, err := n.Run(context.Background(), "ip", "link", "delete", link)
		check(t, err)
	})
	_, err = n.Run(t.Context(), "ip", "address", "add", localDNS.String()+"/32", "dev", link)
	check(t, err)
}

func localServer() object {
	spec := podSpec(object{
		"name": "node-cache", "image": cluster.CoreDNS, "imagePullPolicy": "Never",
		"args":         []string{"-conf", "/etc/coredns/Corefile"},
		"volumeMounts": []object{{"name": "config", "mountPath": "/etc/coredns"}},
	})
	spec["hostNetwork"] = true
	spec["dnsPolicy"] = "Default"
	spec["volumes"] = []object{{"name": "config", "configMap": meta("node-local-dns")}}
	return spec
}
