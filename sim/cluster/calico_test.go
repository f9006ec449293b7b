// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// felix is Calico's program for each node. make gets felix, and the custom resource definitions that felix needs, from
// a release of Calico.
const (
	felix     = "calico-felix"
	calicoCRD = "../../.cache/cluster/calico.yaml"
)

// felixSettings let felix enforce NetworkPolicy, and do nothing else. docs/network-policy.md has the same settings.
var felixSettings = []string{"FELIX_ROUTESYNCDISABLED=true", "FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT",
	"FELIX_IPV6SUPPORT=false", "FELIX_DATASTORETYPE=kubernetes"}

// felixOutput sends the log of felix to its output, and lets felix answer whether it is ready.
var felixOutput = []string{"FELIX_HEALTHENABLED=true", "FELIX_LOGFILEPATH=none", "FELIX_LOGSEVERITYSYS=none",
	"FELIX_USAGEREPORTINGENABLED=false"}

// sctpSpecs is the number of specs that call by SCTP. They are left out: their client fails with "broken pipe" before
// there is a policy. Its server closes each connection at once, so the client's write may come too late.
const sctpSpecs = 3

// removeCalico is a script that removes what felix leaves on a node. docs/network-policy.md has the same lines.
const removeCalico = `for table in raw mangle nat filter; do
	iptables-save -t $table | grep -v 'cali[-:]' | iptables-restore -T $table
done
ipset list -n | grep ^cali | xargs -r -n 1 ipset destroy
find /sys/fs/bpf/tc -type d -empty -delete`

// calico checks NetworkPolicy by felix, as networkPolicy does with another engine. Felix finds pods by the names of
// their pairs. Felix changes nothing that our programs need: doctor only warns that felix does not see ipvlan pods.
func (w *world) calico(t *testing.T) {
	page := string(must(os.ReadFile("../../docs/network-policy.md")))
	for _, text := range append(felixSettings, removeCalico) {
		if !strings.Contains(page, text) {
			t.Errorf("docs/network-policy.md lacks %q", text)
		}
	}
	w.routed(t, object{"vethPrefix": "cali"})
	before := [][]string{findings(t, w.Nodes[0]), findings(t, w.Nodes[1])}
	w.startFelix(t)
	w.denied(t)
	for i, n := range w.Nodes[:2] {
		var warnings []string
		others := slices.DeleteFunc(findings(t, n), func(f string) bool {
			is := strings.HasPrefix(f, "warning: policy: Calico: ")
			if is {
				warnings = append(warnings, f)
			}
			return is
		})
		if len(warnings) != 1 {
			t.Errorf("%s: doctor has %d warnings about Calico", n.Name, len(warnings))
		}
		check(t, differ(n.Name+": doctor", before[i], others))
	}
	w.runPolicySpecs(t, "Calico", allSpecs-sctpSpecs, "--ginkgo.skip=using SCTP")
	to, calls := w.countCalls(t)
	if n := w.atStart(t, to, calls, "Calico"); n != 0 {
		t.Errorf("new pods made %d calls, though felix drops packets from links of unknown pods", n)
	}
}

// startFelix starts felix on both nodes. Felix runs until the end of the test.
func (w *world) startFelix(t *testing.T) {
	t.Helper()
	const manifest = "/run/calico.yaml"
	check(t, w.Master.WriteFile(manifest, must(os.ReadFile(calicoCRD)), 0o644))
	w.kubectl(t, "apply", "--validate=ignore", "--server-side", "-f", manifest)
	t.Cleanup(func() {
		_, err := w.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", manifest)
		check(t, err)
	})
	w.kubectl(t, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	w.apply(t, object{"apiVersion": "crd.projectcalico.org/v1", "kind": "ClusterInformation",
		"metadata": object{"name": "default"}, "spec": object{"datastoreReady": true}})
	for _, n := range w.Nodes[:2] {
		w.startFelixOn(t, n)
	}
	for _, n := range w.Nodes[:2] {
		await(t, func() error {
			_, err := n.Run(t.Context(), "curl", "-sf", "http://127.0.0.1:9099/readiness")
			return err
		})
	}
}

// startFelixOn starts felix on a node. After the test, it ends felix, and deletes felix's rules and sets.
func (w *world) startFelixOn(t *testing.T, n *cluster.Node) {
	t.Helper()
	own := []string{"FELIX_FELIXHOSTNAME=" + n.Name, "KUBECONFIG=" + w.Kubeconfig()}
	program := must(filepath.Abs("../../.cache/cluster/" + felix))
	c := n.Command(context.Background(), "env", slices.Concat(own, felixSettings, felixOutput, []string{program})...)
	log := must(os.Create(filepath.Join(w.logs, n.Name+"-felix.log")))
	c.Stdout, c.Stderr = log, log
	check(t, c.Start())
	t.Cleanup(func() {
		check(t, n.Signal(syscall.SIGTERM, felix))
		ended := c.Wait()
		check(t, log.Close())
		out, err := n.Run(context.Background(), "sh", "-ec", removeCalico)
		if err != nil {
			t.Errorf("%s: felix has ended (%v), and its rules stay: %v%s", n.Name, ended, err, out)
		}
	})
}
