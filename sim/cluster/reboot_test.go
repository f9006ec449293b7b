// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// reboot checks that a node's pods run again after a reboot, with addresses that other hosts reach. Nothing of the
// pods' earlier sandboxes may be left.
func (w *world) reboot(t *testing.T) {
	n := w.join(t, "reboots", cluster.NodeOptions{Conflist: conflist(t, "10-cni-ipvlan-vpc-k8s")})
	spec := server()
	spec["nodeName"] = n.Name
	w.apply(t, deployment("web", 3, spec), podOn("client", "node1", server()))
	client := w.ready(t, "client", 1)[0]
	w.ready(t, "web", 3)
	before := findings(t, n)
	check(t, n.Reboot(t.Context()))
	w.restarted(t, "web", 3)
	pods := w.ready(t, "web", 3)
	for _, p := range pods {
		w.sees(t, client, "http", serverOf(p), client.addr)
		w.sees(t, p, "http", serverOf(client), p.addr)
		seesHost(t, w.Peer.NS, serverOf(p), w.Peer.Addr())
	}
	w.collected(t, n, pods)
	for _, f := range findings(t, n) {
		if !slices.Contains(before, f) {
			t.Errorf("after a reboot, the doctor finds: %s", f)
		}
	}
}

// restarted waits until the containers of all pods of an app run again.
func (w *world) restarted(t *testing.T, app string, n int) {
	t.Helper()
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "get", "pods", "-l", "app="+app, "-o",
			"jsonpath={.items[*].status.containerStatuses[*].restartCount}")
		if counts := strings.Fields(out); err == nil && (len(counts) != n || slices.Contains(counts, "0")) {
			err = fmt.Errorf("the containers of %s have been started again so often: %s\n%s", app, out, w.describe(app))
		}
		return err
	})
}

// collected runs a collection on a node. Then exactly these pods must have leases, one for each address.
func (w *world) collected(t *testing.T, n *cluster.Node, pods []pod) {
	t.Helper()
	await(t, func() error { // a sandbox that has just ended may still be there
		if _, err := n.Run(t.Context(), tool, "registry-gc", "--free-after=1h"); err != nil {
			return err
		}
		b, err := os.ReadFile(n.File(state + "/registry.json"))
		if err != nil {
			return err
		}
		var r struct {
			Leases map[string]struct{ PodName string }
		}
		if err := json.Unmarshal(b, &r); err != nil {
			return err
		}
		var leases, want []string
		for addr, l := range r.Leases {
			leases = append(leases, addr+" "+l.PodName)
		}
		for _, p := range pods {
			for _, a := range p.addrs {
				want = append(want, a.String()+" "+p.name)
			}
		}
		slices.Sort(leases)
		slices.Sort(want)
		if !slices.Equal(leases, want) {
			return fmt.Errorf("%s has the leases %q, want %q", n.Name, leases, want)
		}
		return nil
	})
}

// findings returns the findings of doctor on a node.
func findings(t *testing.T, n *cluster.Node) (all []string) {
	t.Helper()
	out, _ := n.Run(t.Context(), tool, "doctor", "--output=json") // the exit status is not 0 if there are findings
	var report struct {
		Findings []struct{ Check, Severity, About, Means string }
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%s: doctor: %v: %s", n.Name, err, out)
	}
	for _, f := range report.Findings {
		all = append(all, fmt.Sprintf("%s: %s: %s: %s", f.Severity, f.Check, f.About, f.Means))
	}
	return all
}
