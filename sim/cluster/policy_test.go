// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// engine is a program of another project that enforces NetworkPolicy. make gets the engine and its manifest from a
// release of that project. The engine's nftables table has the name of the engine.
const (
	engine         = "kube-network-policies"
	engineManifest = "../../.cache/cluster/netpol.yaml"
)

// policySpecs selects Kubernetes' own tests of NetworkPolicy, and someSpecs selects some of them. In this release of
// Kubernetes, policySpecs selects allSpecs tests, and someSpecs selects fewSpecs tests.
const (
	policySpecs = `\[sig-network\] Netpol`
	someSpecs   = policySpecs + ` NetworkPolicy between server and client should ` +
		`(support a 'default-deny-all' policy|allow egress access to server in CIDR block)`
	allSpecs, fewSpecs = 51, 2
)

// policed has patterns for the namespaces of the pods that the tests of policySpecs make.
var policed = []string{"netpol-*", "udp-network-policy-*", "sctp-network-policy-*"}

// networkPolicy checks NetworkPolicy with an engine, for pods whose data path is veth. It also runs Kubernetes' own
// tests of NetworkPolicy.
func (w *world) networkPolicy(t *testing.T) {
	w.police(t)
	w.denied(t)
	w.runPolicySpecs(t, engine, allSpecs)
}

// runPolicySpecs runs Kubernetes' own tests of NetworkPolicy. The number of these tests must be specs. With the flag
// -short, runPolicySpecs runs only fewSpecs of them. The flags choose the tests more closely.
func (w *world) runPolicySpecs(t *testing.T, engine string, specs int, flags ...string) {
	t.Helper()
	focus := policySpecs
	if testing.Short() {
		focus, specs = someSpecs, fewSpecs
	}
	ran := w.e2e(t, append(flags, "--ginkgo.focus="+focus)...)
	if n := len(ran["passed"]); n != specs {
		t.Errorf("%d specs have passed, want %d", n, specs)
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy by %s: %d of %d specs passed", engine, len(ran["passed"]),
		specs))
}

// newPods counts the calls of new pods that arrive although a policy denies these calls. It counts them first with NRI,
// by which the runtime tells the engine about new pods, and then without NRI.
func (w *world) newPods(t *testing.T) {
	w.police(t)
	to, calls := w.countCalls(t)
	w.atStart(t, to, calls, engine+", with NRI")
	w.kubectl(t, "patch", "--namespace=kube-system", "daemonset", engine, "--type=json", "--patch", withoutNRI)
	w.engineIsReady(t)
	w.atStart(t, to, calls, engine+", without NRI")
}

// countCalls starts a server on the host of the peered VPC. The channel gets the path of each call.
func (w *world) countCalls(t *testing.T) (to netip.AddrPort, calls chan string) {
	t.Helper()
	calls = make(chan string, 10000)
	return w.listen(t, func(_ http.ResponseWriter, r *http.Request) { calls <- r.URL.Path }), calls
}

// police makes the pool of routed pods, and starts the engine.
func (w *world) police(t *testing.T) {
	w.routed(t, nil)
	w.startEngine(t)
}

// routed makes a pool with the data path veth for the pods of policySpecs, and for other pods that ask for the pool.
// The conflist also gets the keys. The data path of all other pods, including CoreDNS, is ipvlan. Addresses cool for
// only 10 seconds, so new pods soon get addresses of earlier pods.
func (w *world) routed(t *testing.T, keys object) {
	t.Helper()
	t.Cleanup(func() {
		time.Sleep(time.Minute) // until the pool's addresses do not cool any more
		check(t, w.collect(context.Background(), "1s"))
	})
	all := object{
		"pools": object{"policed": object{"dataPath": "veth", "namespaces": policed,
			"selectable": []string{"default"}}},
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true}, "reuseIPWait": 10,
	}
	maps.Copy(all, keys)
	w.reconfigure(t, all)
}

// withoutNRI is a patch for the engine's DaemonSet. With this patch, the engine does not ask the runtime about pods.
const withoutNRI = `[{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--disable-nri=true"}]`

// startEngine installs the engine as an operator does. The engine runs until the end of the test.
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

// deleteEnginesTable deletes the engine's rules. By default, these rules let packets pass when the engine does not run.
func (w *world) deleteEnginesTable(t *testing.T) {
	t.Helper()
	for _, n := range w.Nodes {
		_, err := n.Run(context.Background(), "nft", "delete", "table", "inet", engine)
		check(t, err)
	}
}

// denied checks a policy that denies all calls to the pods of a namespace. When the engine has learned of the policy,
// other hosts cannot call a routed pod. The other hosts can still call a pod with an ipvlan slave, because this pod's
// packets bypass the engine.
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
	if now := w.ready(t, "closed", 1)[0]; now.addr != veth.addr { // the policy lets the kubelet's probes pass
		t.Errorf("the pod with the policy has the address %s, and had %s", now.addr, veth.addr)
	}
}

// inPool returns a pod on node1 that asks for the pool of routed pods.
func inPool(name string, spec object) object {
	p := podOn(name, "node1", spec)
	p["metadata"].(object)["annotations"] = object{"cni-ipvlan-vpc-k8s/pool": "policed"}
	return p
}

// eagerPods is the number of pods that start under a policy that denies all their calls. eagerAtOnce of these pods
// start at the same time.
const eagerPods, eagerAtOnce = 100, 10

// atStart counts the denied calls that new pods make to the host of the peered VPC, and returns their number. Each pod
// calls as soon as it runs.
func (w *world) atStart(t *testing.T, to netip.AddrPort, calls chan string, engine string) int {
	t.Helper()
	w.apply(t, object{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": meta("deny"),
		"spec": object{"podSelector": object{}, "policyTypes": []string{"Egress"}}})
	n, called := 0, map[string]bool{}
	for i := range eagerPods / eagerAtOnce {
		w.eager(t, i, to, func() {
			n += quiet(t, calls, called)
		})
	}
	w.figures = append(w.figures, fmt.Sprintf("NetworkPolicy by %s: %d of %d new pods made %d calls that their policy "+
		"denies", engine, len(called), eagerPods, n))
	w.eager(t, eagerPods, to, func() {
		w.remove(t, "NetworkPolicy", "deny")
		select {
		case <-calls:
		case <-time.After(patience):
			t.Error("no pod calls, though there is no policy any more")
		}
	})
	return n
}

// eager starts pods that each call a host ten times a second. It waits until the pods run, calls the function "do", and
// deletes the pods.
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

// quiet waits until pods have made no call for ten seconds, and returns the number of calls. It adds the path of each
// call, which names the pod, to called.
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
