// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// A caller makes one call after the other. Each call uses a new connection.
type caller struct {
	name string
	stop func() // stop also waits until the last call has ended

	calls   int
	slowest time.Duration
	when    time.Time // when the slowest call began
	failed  []string
}

// startCaller starts a caller, which calls the URLs in turn. It stops at the end of the test, if not before.
func startCaller(t *testing.T, name string, from *nl.NS, urls ...string) *caller {
	ctx, cancel := context.WithCancel(context.Background())
	c := &caller{name: name}
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			c.call(from, urls[c.calls%len(urls)])
		}
	})
	c.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(c.stop)
	return c
}

// clock is the format of a time in Kubernetes' logs.
const clock = "15:04:05.000"

func (c *caller) call(from *nl.NS, url string) {
	began := time.Now()
	_, err := getWithin(from, url, time.Minute) // a slow call is not lost: this machine may have other work
	took := time.Since(began)
	c.calls++
	if took > c.slowest {
		c.slowest, c.when = took, began
	}
	if err != nil {
		c.failed = append(c.failed, fmt.Sprintf("call %d, begun at %s, after %v: %v", c.calls,
			began.Format(clock), took, err))
	}
}

func (c *caller) report(t *testing.T) {
	t.Helper()
	c.stop()
	t.Logf("%s: %d calls, %d failed, the slowest began at %s and took %v", c.name, c.calls, len(c.failed),
		c.when.Format(clock), c.slowest.Round(time.Millisecond))
	for _, f := range c.failed {
		t.Errorf("%s: %s", c.name, f)
	}
	if c.calls == 0 {
		t.Errorf("%s has not called", c.name)
	}
}

// undisturbed makes a change during calls to a Service. A pod and a node call the ClusterIP, and a host of a peered VPC
// calls the NodePorts. No call may fail.
func (w *world) undisturbed(t *testing.T, name string, change func()) {
	t.Helper()
	w.apply(t, podOn("client", "node1", server()))
	s, client := w.serviceAddr(t, name), w.ready(t, "client", 1)[0]
	ns := w.inside(t, client)
	atCluster := hostnameURL(s.addr, s.http)
	atNode1, atNode2 := hostnameURL(w.Nodes[0].Addr(), s.nodeHTTP), hostnameURL(w.Nodes[1].Addr(), s.nodeHTTP)
	answers(t, ns, atCluster)
	answers(t, w.Nodes[0].NS, atCluster)
	answers(t, w.Peer.NS, atNode1)
	answers(t, w.Peer.NS, atNode2)
	callers := []*caller{
		startCaller(t, "a pod that calls the ClusterIP", ns, atCluster),
		startCaller(t, "a node that calls the ClusterIP", w.Nodes[0].NS, atCluster),
		startCaller(t, "a peer that calls the NodePorts", w.Peer.NS, atNode1, atNode2),
	}
	change()
	for _, c := range callers {
		c.report(t)
	}
}

func hostnameURL(a netip.Addr, port uint16) string {
	return fmt.Sprintf("http://%s/hostname", netip.AddrPortFrom(a, port))
}

func answers(t *testing.T, from *nl.NS, url string) {
	t.Helper()
	await(t, func() error {
		_, err := get(from, url)
		return err
	})
}

func (w *world) inside(t *testing.T, p pod) *nl.NS {
	t.Helper()
	n := w.node(p.node)
	state, err := leases(n)
	check(t, err)
	lease, ok := state.Leases.At(p.addr)
	if !ok {
		t.Fatalf("%s: the registry has no lease of %s, which %s has", n.Name, p.addr, p.name)
	}
	ns, err := nl.Open(p.name, n.File("/run/netns/"+path.Base(lease.NetNS))) // /var/run is not of the node
	check(t, err)
	t.Cleanup(func() { check(t, ns.Close()) })
	return ns
}

// lasting returns a server that still answers for 40 seconds after the deletion of its pod. kube-proxy sends
// connections to the pod until kube-proxy has learned of the deletion. With another pod network, kube-proxy would do
// the same.
func lasting() object {
	c := container("netexec")
	c["lifecycle"] = object{"preStop": object{"sleep": object{"seconds": 40}}}
	spec := podSpec(c)
	spec["terminationGracePeriodSeconds"] = 90
	return spec
}

// serve starts a Deployment that never has fewer pods than replicas, and its Service.
func (w *world) serve(t *testing.T, name string, replicas int) {
	t.Helper()
	d := deployment(name, replicas, lasting())
	d["spec"].(object)["strategy"] = object{"rollingUpdate": object{"maxUnavailable": 0, "maxSurge": 2}}
	w.apply(t, d, service(name, name, "type", "NodePort"))
	w.rolledOut(t, name)
}

func (w *world) rolledOut(t *testing.T, name string, args ...string) {
	t.Helper()
	w.kubectl(t, append([]string{"rollout", "status", "deployment", name, fmt.Sprint("--timeout=", patience)},
		args...)...)
}

func (w *world) kubectl(t *testing.T, args ...string) {
	t.Helper()
	_, err := w.Kubectl(t.Context(), args...)
	check(t, err)
}

// only waits until an app has exactly n pods. Pods that are about to end count, too.
func (w *world) only(t *testing.T, app string, n int) {
	t.Helper()
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "get", "pods", "--no-headers", "-l", "app="+app)
		if lines := strings.Count(out, "\n"); err == nil && lines != n {
			err = fmt.Errorf("%s has %d pods, want %d:\n%s", app, lines, n, out)
		}
		return err
	})
}

// scale checks that no call fails while a Deployment gets more pods, and then loses pods again.
func (w *world) scale(t *testing.T) {
	w.serve(t, "web", 2)
	w.undisturbed(t, "web", func() {
		w.kubectl(t, "scale", "--replicas=12", "deployment", "web")
		w.rolledOut(t, "web")
		w.kubectl(t, "scale", "--replicas=1", "deployment", "web")
		w.only(t, "web", 1)
	})
}

// rollingUpdate checks that no call fails while all pods of a Deployment are replaced.
func (w *world) rollingUpdate(t *testing.T) {
	w.serve(t, "web", 4)
	w.undisturbed(t, "web", func() {
		w.kubectl(t, "patch", "deployment", "web", "--patch",
			`{"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}`)
		w.rolledOut(t, "web")
		w.only(t, "web", 4)
	})
}

// drain checks that no call fails while all pods leave a node.
func (w *world) drain(t *testing.T) {
	w.serve(t, "web", 4)
	w.apply(t, object{
		"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta("web"),
		"spec": object{"maxUnavailable": 1, "selector": object{"matchLabels": labels("web")}},
	})
	t.Cleanup(func() { w.uncordon(t) })
	w.undisturbed(t, "web", func() {
		w.kubectl(t, "drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data",
			fmt.Sprint("--timeout=", patience))
		w.rolledOut(t, "web")
	})
	if left := onNode(w.ready(t, "web", 4), "node2"); len(left) != 0 {
		t.Errorf("node2 has pods after the drain: %v", left)
	}
}

// uncordon lets node2 have new pods again, and waits until CoreDNS is on both nodes.
func (w *world) uncordon(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"uncordon", "node2"},
		{"rollout", "status", "--namespace=kube-system", "deployment", "coredns", fmt.Sprint("--timeout=", patience)},
	} {
		if _, err := w.Kubectl(context.Background(), args...); err != nil {
			t.Error(err)
		}
	}
}
