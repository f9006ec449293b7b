// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// The engine is kube-network-policies of another project. make gets its manifest and its program from its release. Its
// nftables table has its name.
const (
	engine         = "kube-network-policies"
	engineManifest = "../../.cache/cluster/netpol.yaml"
)

// policySpecs are Kubernetes' own tests of NetworkPolicy, and someSpecs are some of them. This release has allSpecs and
// fewSpecs tests.
const (
	policySpecs = `\[sig-network\] Netpol`
	someSpecs   = policySpecs + ` NetworkPolicy between server and client should ` +
		`(support a 'default-deny-all' policy|allow egress access to server in CIDR block)`
	allSpecs, fewSpecs = 51, 2
)

// policed are the namespaces of policySpecs' pods.
var policed = []string{"netpol-*", "udp-network-policy-*", "sctp-network-policy-*"}

// networkPolicy checks NetworkPolicy with an engine for pods whose data path is veth, and runs Kubernetes' own tests of
// it.
func (w *world) networkPolicy(t *testing.T) {
	w.police(t)
	w.denied(t)
	focus, specs := policySpecs, allSpecs
	if testing.Short() {
		focus, specs = someSpecs, fewSpecs
	}
	ran := w.e2e(t, "--ginkgo.focus="+focus)
	if n := len(ran["passed"]); n != specs {
		t.Errorf("%d specs have passed, want %d", n, specs)
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy by %s: %d of %d specs passed", engine, len(ran["passed"]),
		specs))
}

// newPods counts the denied calls of new pods, for each way by which the engine learns of pods.
func (w *world) newPods(t *testing.T) {
	w.police(t)
	calls := make(chan string, 10000)
	to := w.listen(t, func(_ http.ResponseWriter, r *http.Request) { calls <- r.URL.Path })
	w.atStart(t, to, calls, "by the API server and NRI")
	w.kubectl(t, "patch", "--namespace=kube-system", "daemonset", engine, "--type=json", "--patch", withoutNRI)
	w.engineIsReady(t)
	w.atStart(t, to, calls, "by the API server alone")
}

// police starts the engine. A pool serves the pods of policySpecs, and other pods that ask for it. All other pods,
// including CoreDNS, have an ipvlan link. The ENI has few addresses, so they are soon used again.
func (w *world) police(t *testing.T) {
	t.Cleanup(func() {
		time.Sleep(time.Minute) // the addresses of the pool cool
		check(t, w.collect(context.Background(), "1s"))
	})
	w.reconfigure(t, object{
		"pools": object{"policed": object{"dataPath": "veth", "namespaces": policed,
			"selectable": []string{"default"}}},
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true}, "reuseIPWait": 10,
	})
	w.startEngine(t)
}

// withoutNRI makes the engine not ask the runtime.
const withoutNRI = `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--disable-nri=true"}]`

// startEngine installs the engine as an operator does, until the end of the test.
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
	w.engineIsReady(t)
}

func (w *world) engineIsReady(t *testing.T) {
	t.Helper()
	w.kubectl(t, "rollout", "status", "--namespace=kube-system", fmt.Sprint("--timeout=", patience),
		"daemonset/"+engine)
	for _, n := range w.Nodes {
		await(t, func() error {
			_, err := n.Run(t.Context(), "nft", "list", "chain", "inet", engine, "postrouting")
			return err
		})
	}
}

// deleteEnginesTable deletes the engine's rules, which by default let packets pass when the engine does not run.
func (w *world) deleteEnginesTable(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		_, err := n.Run(context.Background(), "nft", "delete", "table", "inet", engine)
		check(t, err)
	}
}

// denied checks a policy that denies all calls of the pods of a namespace. Other hosts of the VPC cannot call a routed
// pod. They can call a pod with an ipvlan link, whose packets bypass the engine.
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

// inPool is a routed pod on node1.
func inPool(name string, spec object) object {
	p := podOn(name, "node1", spec)
	p["metadata"].(object)["annotations"] = object{"cni-ipvlan-vpc-k8s/pool": "policed"}
	return p
}

// The number of pods that start under a policy that denies all their calls, and how many start at once.
const eagerPods, eagerAtOnce = 100, 10

// atStart counts the denied calls of new pods to a host of the VPC. Each pod calls at once.
func (w *world) atStart(t *testing.T, to netip.AddrPort, calls chan string, learns string) {
	t.Helper()
	w.apply(t, object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("deny"),
		"spec": object{"podSelector": object{}, "policyTypes": []string{"Egress"}}})
	n, called := 0, map[string]bool{}
	for i := range eagerPods / eagerAtOnce {
		w.eager(t, i, to, func() {
			n += quiet(t, calls, called)
		})
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy: %d of %d new pods made %d calls that their policy "+
		"denies; the engine learns their addresses %s", len(called), eagerPods, n, learns))
	w.eager(t, eagerPods, to, func() {
		w.remove(t, "NetworkPolicy", "deny")
		select {
		case <-calls:
		case <-time.After(patience):
			t.Error("no pod calls, though there is no policy any more")
		}
	})
}

// eager starts pods that call a host ten times a second, calls do, and ends the pods.
func (w *world) eager(t *testing.T, round int, to netip.AddrPort, do func()) {
	t.Helper()
	var pods []object
	for i := range eagerAtOnce {
		name := fmt.Sprintf("eager%d-%d", round, i)
		c := container("-c", fmt.Sprintf("while :; do curl -s -m 1 http://%s/%s; sleep 0.1; done", to, name))
		c["command"] = []string{"sh"}
		delete(c, "readinessProbe")
		p := inPool(name, podSpec(c))
		p["metadata"].(object)["labels"] = labels("eager")
		pods = append(pods, p)
	}
	list := must(json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": pods}))
	check(t, w.Apply(t.Context(), string(list)))
	w.ready(t, "eager", eagerAtOnce)
	do()
	w.kubectl(t, "delete", "pods", "-l", "app=eager", "--now")
	w.only(t, "eager", 0)
}

// quiet waits until no pod calls, and returns the number of calls. called has their paths.
func quiet(t *testing.T, calls chan string, called map[string]bool) (n int) {
	t.Helper()
	late := time.After(2 * time.Minute)
	for {
		select {
		case path := <-calls:
			called[path] = true
			n++
		case <-time.After(10 * time.Second):
			return n
		case <-late:
			t.Fatal("a pod calls, though a policy denies it")
		}
	}
}
