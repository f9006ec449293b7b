// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
)

// kills sends SIGKILL to containerd, then to kubelet, and then to kube-proxy. It does this on both nodes, while the
// nodes create pods. Each pod must get an address of its own. At the end, no pod may leave anything behind.
func (w *world) kills(t *testing.T) {
	w.apply(t, deployment("web", 10, server()))
	for i, program := range []string{"containerd", "kubelet", "kube-proxy"} {
		w.begun(t, 1+3*i)
		pods, err := w.pods(t.Context(), "web")
		check(t, err)
		t.Logf("%s is killed when %d pods are ready", program, len(pods))
		for _, n := range w.Nodes {
			check(t, n.Signal(syscall.SIGKILL, program))
		}
	}
	w.rolledOut(t, "web")
	w.callAll(t, w.ready(t, "web", 10))
	check(t, w.unique(t.Context()))
	w.remove(t, "deployment", "web")
	await(t, func() error { return w.allAsBefore(t.Context()) })
}

// begun waits until the nodes have at least n leases of pods in the namespace default.
func (w *world) begun(t *testing.T, n int) {
	t.Helper()
	await(t, func() error {
		found := 0
		for _, node := range w.Nodes {
			s, err := leases(node)
			if err != nil {
				return err
			}
			for _, l := range s.Leases.All() {
				if l.PodNamespace == "default" {
					found++
				}
			}
		}
		if found < n {
			return fmt.Errorf("%d pods have an address, want %d", found, n)
		}
		return nil
	})
}

// callAll checks that the master, the peer and the nodes reach the pods.
func (w *world) callAll(t *testing.T, pods []pod) {
	t.Helper()
	for _, p := range pods {
		for name, from := range map[string]*nl.NS{"master": w.Master.NS, "peer": w.Peer.NS, "node1": w.Nodes[0].NS,
			"node2": w.Nodes[1].NS} {
			if _, err := get(from, netexec(p.addr, "hostname")); err != nil {
				t.Errorf("%s calls %s on %s: %v", name, p.name, p.node, err)
			}
		}
	}
}

// unique checks that no two pods have the same address, in the API and in the registries.
func (w *world) unique(ctx context.Context) error {
	out, err := w.Kubectl(ctx, "get", "pods", "-A", "-o", "json",
		"--field-selector=status.phase!=Failed,status.phase!=Succeeded")
	if err != nil {
		return err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Spec     struct{ HostNetwork bool }
			Status   struct{ PodIPs []struct{ IP netip.Addr } }
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return err
	}
	owner := map[netip.Addr]string{}
	errs := []error{w.apart()}
	for _, i := range list.Items {
		if i.Spec.HostNetwork {
			continue
		}
		for _, a := range i.Status.PodIPs {
			if other, ok := owner[a.IP]; ok {
				errs = append(errs, fmt.Errorf("%s and %s have the address %s", other, i.Metadata.Name, a.IP))
			}
			owner[a.IP] = i.Metadata.Name
		}
	}
	return errors.Join(errs...)
}

// churn creates twelve pods, and deletes all of them when six have an address. It does this three times.
func (w *world) churn(t *testing.T) {
	for range 3 {
		w.apply(t, deployment("churn", 12, server()))
		w.begun(t, 6)
		check(t, w.unique(t.Context()))
		pods, err := w.pods(t.Context(), "churn")
		check(t, err)
		t.Logf("12 pods are deleted when %d of them are ready", len(pods))
		w.remove(t, "deployment", "churn")
		check(t, w.unique(t.Context()))
	}
	await(t, func() error { return w.allAsBefore(t.Context()) })
}

// plantedFaults checks that our checks find planted faults: a wrong route to a pod, and a lease of a pod that has ended
// without a DEL.
func (w *world) plantedFaults(t *testing.T) {
	w.wrongRoute(t)
	w.strayLease(t)
}

// wrongRoute adds a route on node1. This route drops all packets from node1 to a pod. The checks must find the route.
func (w *world) wrongRoute(t *testing.T) {
	w.apply(t, podOn("web", "node1", server()))
	web, node := w.ready(t, "web", 1)[0], w.node("node1")
	reach := func() error {
		_, err := get(node.NS, netexec(web.addr, "hostname"))
		return err
	}
	check(t, reach())
	run(t, node.Run, "ip", "route", "replace", "blackhole", web.addr.String())
	if reach() == nil {
		t.Errorf("node1 calls %s, although its route leads nowhere", web.addr)
	}
	found(t, w.asBefore(t.Context(), node), "has too much: ip route show table all: blackhole "+web.addr.String())
	run(t, node.Run, tool, "repair")
	check(t, reach())
	check(t, w.asBefore(t.Context(), node))
}

func run(t *testing.T, runner func(context.Context, string, ...string) (string, error), name string, args ...string) {
	t.Helper()
	_, err := runner(t.Context(), name, args...)
	check(t, err)
}

func found(t *testing.T, err error, what ...string) {
	t.Helper()
	for _, s := range what {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("the check does not find %q. It finds: %v", s, err)
		}
	}
}

// strayLease makes a pod, and removes the pod's network namespace without a DEL. The pod's lease and rule remain until
// a collection ends the lease.
func (w *world) strayLease(t *testing.T) {
	node := w.node("node2")
	run(t, node.Run, "ip", "netns", "add", "stray")
	addr := w.add(t, "stray")
	run(t, node.Run, "ip", "netns", "del", "stray")
	found(t, w.asBefore(t.Context(), node),
		addr+" is leased to default/stray, which is no pod of this node",
		addr+" is leased to the sandbox stray of default/stray, which does not run",
		"/run/netns has lost: stray",
		"has too much: ip rule: 1024:	from all iif veth")
	await(t, func() error { return w.allAsBefore(t.Context()) })
}

// add calls our plugin with ADD on node2, as containerd does, and returns the address of the new pod.
func (w *world) add(t *testing.T, name string) string {
	t.Helper()
	var list struct {
		CNIVersion, Name string
		Plugins          []object
	}
	check(t, json.Unmarshal(conflist(t, "portmap"), &list))
	conf := list.Plugins[0]
	conf["cniVersion"], conf["name"] = list.CNIVersion, list.Name
	c := w.node("node2").Command(t.Context(), "env", "CNI_COMMAND=ADD", "CNI_CONTAINERID="+name,
		"CNI_NETNS=/run/netns/"+name, "CNI_IFNAME=eth0",
		"CNI_PATH=/opt/cni/bin", "CNI_ARGS=K8S_POD_NAMESPACE=default;K8S_POD_NAME="+name,
		"/opt/cni/bin/cni-ipvlan-vpc-k8s")
	c.Stdin = strings.NewReader(string(must(json.Marshal(conf))))
	out, err := machine.Output("node2", c)
	check(t, err)
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	check(t, json.Unmarshal([]byte(out), &result))
	return result.IPs[0].Address.Addr().String()
}
