// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

var (
	proxy = flag.String("proxy", "nftables", "`mode` of kube-proxy: nftables or iptables")
	logs  = flag.String("logs", "", "`directory` for the output of all programs; by default it is lost")
	shape = flag.String("shape", "", "`shape` of the first two nodes: \"\", \"three plugins\" or \"both families\"")
	specs = flag.String("specs", "", "`expression` for names of Kubernetes' tests of the network; by default all")
	file  = flag.String("table", "", "`file` for the table of results")
)

// A scenario is a test that does what a user of a cluster does. With the flag -short, TestCluster runs only the short
// scenarios. make test-cluster runs all scenarios.
type scenario struct {
	name  string
	short bool
	run   func(*world, *testing.T)
}

var scenarios = []scenario{
	{"transcript", true, (*world).transcript}, // must be first: it shows nodes that have no history
	{"pods on both nodes", true, (*world).podsOnBothNodes},
	{"ClusterIP", true, (*world).clusterIP},
	{"NodePort", true, (*world).nodePort},
	{"DNS", true, (*world).dns},
	{"hostPort", true, (*world).hostPort},
	{"host network", true, (*world).hostNetwork},
	{"NodeLocal DNSCache", false, (*world).nodeLocalDNS},
	{"NetworkPolicy", true, (*world).networkPolicy},
	{"NetworkPolicy of new pods", false, (*world).newPods},
	{"NetworkPolicy by Calico", false, (*world).calico},
	{"Kubernetes' tests of the network", false, (*world).network},
	{"user namespaces", false, (*world).userNamespaces},
	{"scale", false, (*world).scale},
	{"rolling update", false, (*world).rollingUpdate},
	{"drain", true, (*world).drain},
	{"kills", false, (*world).kills},
	{"churn", false, (*world).churn},
	{"STATUS while the registry is locked", false, (*world).statusWhileLocked},
	{"STATUS under load", false, (*world).statusUnderLoad},
	{"STATUS of a broken node", false, (*world).statusOfBrokenNode},
	{"exhaustion", false, (*world).exhaustion},
	{"scheduler", false, (*world).scheduler},
	{"reboot", false, (*world).reboot},
	{"joins with provision none", false, (*world).preProvisioned},
	{"installs itself", false, (*world).installsItself},
	{"kubectl plugin", false, (*world).kubectlPlugin},
	{"dual stack and prefixes", false, (*world).dualStack},
	{"upgrade", false, (*world).upgrade},
	{"two releases", false, (*world).twoReleases},
	{"NodePort with keepCaller", false, (*world).keepCaller},
	{"egress", false, (*world).egress},
	{"a router moves", false, (*world).routerMoves},
	{"a chosen address follows its pod", false, (*world).follows},
	{"pod start", false, (*world).podStart},
	{"planted faults", false, (*world).plantedFaults},
	{"as before", true, (*world).theEnd}, // must be last: it looks for leftovers of all other scenarios
}

// TestCluster runs the scenarios in one cluster, one after the other.
func TestCluster(t *testing.T) {
	w := start(t)
	for _, s := range scenarios {
		if testing.Short() && !s.short {
			continue
		}
		w.run(t, s)
	}
	w.table.write(t, *file, w.figures)
}

func (w *world) run(t *testing.T, s scenario) {
	began, ran := time.Now(), false
	ok := t.Run(s.name, func(t *testing.T) {
		ran = true
		s.run(w, t)
	})
	if ran { // the flag -run may have left out the scenario
		w.table.add(s.name, ok, time.Since(began))
	}
}

// start starts a cluster of two nodes, and ends it after the test.
func start(t *testing.T) *world {
	t.Helper()
	began := time.Now()
	node := shaped(t)
	o := cluster.Options{
		Plugins: "../../bin", Programs: "../../.cache/cluster", Runtime: "../../.cache/cri",
		Peers: "../../.cache/peers", Units: "../../systemd",
		Logs: *logs, Proxy: *proxy,
	}
	if o.Logs == "" {
		o.Logs = t.TempDir()
	}
	c, err := cluster.Start(t.Context(), o, node, node)
	check(t, err)
	t.Cleanup(func() { check(t, c.Close()) })
	w := &world{Cluster: c, logs: o.Logs}
	version, err := c.Kubectl(t.Context(), "get", "node", "node1", "-o",
		"jsonpath=Kubernetes {.status.nodeInfo.kubeletVersion}, {.status.nodeInfo.containerRuntimeVersion}")
	check(t, err)
	w.table = table{began: began, title: fmt.Sprintf("%s, kube-proxy %s, Linux %s%s", version, *proxy, release(t),
		named())}
	w.table.add("start", true, time.Since(began))
	return w.remember(t)
}

// conflist returns one of the shipped conflists.
func conflist(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../conflist-examples/" + name + ".conflist")
	check(t, err)
	return b
}
