// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws/sim/cluster"
)

var (
	proxy = flag.String("proxy", "nftables", "`mode` of kube-proxy: nftables or iptables")
	logs  = flag.String("logs", "", "`directory` for the output of all programs; by default they are lost")
)

// A scenario is what a user of a cluster does. The short ones run in each test of the repository, all by make test-cluster.
type scenario struct {
	name  string
	short bool
	run   func(*world, *testing.T)
}

var scenarios = []scenario{
	{"pods on both nodes", true, (*world).podsOnBothNodes},
	{"ClusterIP", true, (*world).clusterIP},
	{"NodePort", true, (*world).nodePort},
	{"DNS", true, (*world).dns},
	{"hostPort", true, (*world).hostPort},
	{"host network", true, (*world).hostNetwork},
	{"STATUS while the registry is locked", false, (*world).statusWhileLocked},
	{"STATUS under load", false, (*world).statusUnderLoad},
	{"exhaustion", false, (*world).exhaustion},
	{"reboot", false, (*world).reboot},
	{"joins with provision none", false, (*world).preProvisioned},
	{"dual stack and prefixes", false, (*world).dualStack},
	{"upgrade", false, (*world).upgrade},
}

// TestCluster runs the scenarios in one cluster, one after the other. Each removes what it has made.
func TestCluster(t *testing.T) {
	w := start(t)
	for _, s := range scenarios {
		if testing.Short() && !s.short {
			continue
		}
		t.Run(s.name, func(t *testing.T) { s.run(w, t) })
	}
}

// start starts a cluster of two nodes, and ends it after the test.
func start(t *testing.T) *world {
	t.Helper()
	began := time.Now()
	node := cluster.NodeOptions{Conflist: conflist(t, "portmap")}
	o := cluster.Options{
		Plugins: "../../../bin", Programs: "../../../.cache/cluster", Runtime: "../../../.cache/cri", Peers: "../../../.cache/peers",
		Logs: *logs, Proxy: *proxy,
	}
	if o.Logs == "" {
		o.Logs = t.TempDir()
	}
	c, err := cluster.Start(t.Context(), o, node, node)
	check(t, err)
	t.Logf("the cluster is ready after %.0f s", time.Since(began).Seconds())
	t.Cleanup(func() { check(t, c.Close()) })
	return &world{Cluster: c, proxy: *proxy}
}

// conflist is one of the shipped conflists.
func conflist(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../../conflist-examples/" + name + ".conflist")
	check(t, err)
	return b
}
