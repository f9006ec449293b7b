// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// The engine is kube-network-policies, which is not ours. make takes its manifest and its program from its release. Its
// table of nftables has its name.
const (
	engine         = "kube-network-policies"
	engineManifest = "../../.cache/cluster/netpol.yaml"
)

// policySpecs are Kubernetes' own tests of NetworkPolicy, and leastPolicySpecs how many of them must pass: this release
// has 53.
const (
	policySpecs      = `\[sig-network\] Netpol`
	leastPolicySpecs = 50
)

// policed are the namespaces of the pods of policySpecs.
var policed = []string{"netpol-*", "udp-network-policy-*", "sctp-network-policy-*"}

// networkPolicy checks NetworkPolicy with an engine for pods that have a veth, and runs Kubernetes' own tests of it. A
// pool serves the pods of these tests, and others that ask for it. All other pods have an ipvlan link, CoreDNS too.
func (w *world) networkPolicy(t *testing.T) {
	t.Cleanup(func() { check(t, w.collect(context.Background(), "1s")) }) // the ENIs of the pool
	w.reconfigure(t, object{
		"pools": object{"policed": object{"dataPath": "veth", "namespaces": policed,
			"selectable": []string{"default"}}},
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
	})
	w.startEngine(t)
	w.denied(t)
	w.atStart(t)
	ran := w.e2e(t, "--ginkgo.focus="+policySpecs)
	if n := len(ran["passed"]); n < leastPolicySpecs {
		t.Errorf("%d specs have passed, want at least %d", n, leastPolicySpecs)
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy by %s: %d of %d specs passed", engine, len(ran["passed"]),
		len(ran["passed"])+len(ran["failed"])))
}

// startEngine installs the engine until the end of the test, as an operator does.
func (w *world) startEngine(t *testing.T) {
	t.Helper()
	const manifest = "/run/" + engine + ".yaml"
	check(t, w.Master.WriteFile(manifest, must(os.ReadFile(engineManifest)), 0o644))
	w.kubectl(t, "apply", "--validate=ignore", "-f", manifest)
	t.Cleanup(func() {
		_, err := w.Kubectl(context.Background(), "delete", "--ignore-not-found", "--cascade=foreground", "-f",
			manifest)
		check(t, err)
		w.deleteEnginesTable(t)
	})
	w.kubectl(t, "rollout", "status", "--namespace=kube-system", fmt.Sprint("--timeout=", patience),
		"daemonset/"+engine)
	for _, n := range w.Nodes {
		await(t, func() error {
			_, err := n.Run(t.Context(), "nft", "list", "chain", "inet", engine, "postrouting")
			return err
		})
	}
}

// deleteEnginesTable deletes what the engine leaves on a node. By its default, packets pass its rules when it does not
// run.
func (w *world) deleteEnginesTable(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		_, err := n.Run(context.Background(), "nft", "delete", "table", "inet", engine)
		check(t, err)
	}
}

// denied checks a policy that denies all calls of the pods of a namespace. Other hosts of the VPC cannot call a pod
// with a veth. They can call a pod with an ipvlan link: its packets do not pass the node, and so do not pass the
// engine.
func (w *world) denied(t *testing.T) {
	t.Helper()
	w.apply(t, inPool("closed", server()), podOn("open", "node1", server()))
	veth, ipvlan := w.ready(t, "closed", 1)[0], w.ready(t, "open", 1)[0]
	for _, from := range []*vpcsim.Instance{w.Peer, w.Master.Instance, w.Nodes[1].Instance} {
		seesHost(t, from.NS, serverOf(veth), from.Addr())
	}
	w.apply(t, object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("deny"),
		"spec": object{"podSelector": object{}, "policyTypes": []string{"Ingress"}}})
	for _, from := range []*vpcsim.Instance{w.Peer, w.Master.Instance, w.Nodes[1].Instance} {
		await(t, func() error {
			if _, err := getWithin(from.NS, netexec(veth.addr, "hostname"), 3*time.Second); err == nil {
				return fmt.Errorf("%s is answered by a pod that a policy closes", from.Addr())
			}
			return nil
		})
		seesHost(t, from.NS, serverOf(ipvlan), from.Addr())
	}
	if now := w.ready(t, "closed", 1)[0]; now.addr != veth.addr { // the probes of its own node are no calls
		t.Errorf("the pod with the policy has the address %s, and had %s", now.addr, veth.addr)
	}
}

// inPool is a pod on node1 with a veth.
func inPool(name string, spec object) object {
	p := podOn(name, "node1", spec)
	p["metadata"].(object)["annotations"] = object{"cni-ipvlan-vpc-k8s/pool": "policed"}
	return p
}

// atStart measures how long a new pod can call a host of the VPC, though a policy denies it. An engine learns the
// address of a pod from the API server.
func (w *world) atStart(t *testing.T) {
	t.Helper()
	calls := make(chan time.Time, 1000)
	to := w.listen(t, func(http.ResponseWriter, *http.Request) { calls <- time.Now() })
	w.apply(t, object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("deny"),
		"spec": object{"podSelector": object{}, "policyTypes": []string{"Egress"}}})
	c := container("-c", fmt.Sprintf("while :; do curl -s -m 1 http://%s/; sleep 0.1; done", to))
	c["command"] = []string{"sh"}
	delete(c, "readinessProbe")
	w.apply(t, inPool("eager", podSpec(c)))
	w.ready(t, "eager", 1)
	first, last, n := time.Time{}, time.Time{}, 0
	for quiet, late := false, time.After(2*time.Minute); !quiet; {
		select {
		case last = <-calls:
			if n++; n == 1 {
				first = last
			}
		case <-time.After(10 * time.Second):
			quiet = true
		case <-late:
			t.Fatal("a pod calls, though a policy denies it")
		}
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy: a new pod made %d calls that its policy denies, the "+
		"last %.1f s after the first", n, last.Sub(first).Seconds()))
	w.remove(t, "NetworkPolicy", "deny")
	select {
	case <-calls:
	case <-time.After(patience):
		t.Error("a pod does not call, though there is no policy any more")
	}
}
