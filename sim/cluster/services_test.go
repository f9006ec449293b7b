// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// podsOnBothNodes checks a Deployment. Its pods are on both nodes, have addresses of the VPC, and call each other. Each
// called pod must see the caller's own address.
func (w *world) podsOnBothNodes(t *testing.T) {
	w.apply(t, deployment("web", 4, server()))
	pods := w.ready(t, "web", 4)
	if a, b := onNode(pods, "node1"), onNode(pods, "node2"); len(a) != 2 || len(b) != 2 {
		t.Fatalf("%d pods on node1, %d on node2: want two each", len(a), len(b))
	}
	range64 := netip.MustParsePrefix("100.64.0.0/16")
	for _, from := range pods {
		if !range64.Contains(from.addr) {
			t.Errorf("%s has the address %s: want one of %s", from.name, from.addr, range64)
		}
		for _, to := range pods {
			w.sees(t, from, "http", netip.AddrPortFrom(to.addr, port), from.addr)
		}
	}
}

func onNode(pods []pod, node string) (on []pod) {
	for _, p := range pods {
		if p.node == node {
			on = append(on, p)
		}
	}
	return on
}

// sees checks that a call by a pod gets an answer, and that the other end sees the source address want.
func (w *world) sees(t *testing.T, from pod, protocol string, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	await(t, func() error { // repeat until kube-proxy has the endpoints
		seen, err := w.call(from, protocol, to)
		if err == nil && seen != want {
			err = fmt.Errorf("%s on %s calls %s by %s, which sees %s: want %s", from.name, from.node, to,
				protocol, seen, want)
		}
		return err
	})
}

// seesHost is like sees, but the caller is a namespace that is not a pod.
func seesHost(t *testing.T, from *nl.NS, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	await(t, func() error {
		seen, err := seenBy(from, to)
		if err == nil && seen != want {
			err = fmt.Errorf("a call of %s sees %s: want %s", to, seen, want)
		}
		return err
	})
}

// clusterIP calls Services at their ClusterIPs, by TCP and UDP. A backend must see the caller's address. If a pod calls
// itself through a Service, the call must get an answer.
func (w *world) clusterIP(t *testing.T) {
	w.apply(t, deployment("web", 2, server()), service("web", "web"), podOn("client", "node1", server()),
		podOn("single", "node1", server()), service("single", "single"))
	pods := append(w.ready(t, "web", 2), w.ready(t, "client", 1)...)
	web := w.serviceAddr(t, "web")
	for _, from := range pods {
		if from.name != "client" {
			continue // a pod of web may call itself: see below
		}
		w.sees(t, from, "http", netip.AddrPortFrom(web.addr, web.http), from.addr)
		w.sees(t, from, "udp", netip.AddrPortFrom(web.addr, web.udp), from.addr)
	}
	one := w.ready(t, "single", 1)[0]
	s := w.serviceAddr(t, "single")
	await(t, func() error {
		// if a pod calls itself, kube-proxy decides which address the pod sees
		_, err := w.call(one, "http", netip.AddrPortFrom(s.addr, s.http))
		return err
	})
	await(t, func() error {
		_, err := w.call(one, "udp", netip.AddrPortFrom(s.addr, s.udp))
		return err
	})
}

// nodePort checks NodePorts for callers from the VPC, a peered VPC, the node itself, and a pod.
func (w *world) nodePort(t *testing.T) {
	w.apply(t, podOn("web", "node1", server()), podOn("client", "node2", server()),
		service("web", "web", "type", "NodePort"), service("local", "web", "type", "NodePort",
			"externalTrafficPolicy", "Local"))
	w.ready(t, "web", 1)
	client := w.ready(t, "client", 1)[0]
	s, local := w.serviceAddr(t, "web"), w.serviceAddr(t, "local")
	for _, n := range w.Nodes {
		at := netip.AddrPortFrom(n.Addr(), s.nodeHTTP)
		for name, from := range map[string]*nl.NS{"master": w.Master.NS, "peer": w.Peer.NS, n.Name: n.NS} {
			await(t, func() error {
				if _, err := seenBy(from, at); err != nil {
					return fmt.Errorf("%s calls the NodePort of %s: %w", name, n.Name, err)
				}
				return nil
			})
		}
		await(t, func() error { _, err := w.call(client, "http", at); return err })
		await(t, func() error { _, err := w.call(client, "udp", netip.AddrPortFrom(n.Addr(), s.nodeUDP)); return err })
	}
	seesHost(t, w.Peer.NS, netip.AddrPortFrom(w.Nodes[0].Addr(), local.nodeHTTP), w.localCaller())
	if _, err := seenBy(w.Peer.NS, netip.AddrPortFrom(w.Nodes[1].Addr(), local.nodeHTTP)); err == nil {
		t.Error("node2 answers at the NodePort of a Service with externalTrafficPolicy Local, and has no pod of it")
	}
}

// localCaller returns the source address that a pod of node1 sees in calls from the peer to a Service with
// externalTrafficPolicy Local.
func (w *world) localCaller() netip.Addr { return w.Nodes[0].Addr() } // the conflist has no keepCaller

// dns checks the cluster's name server from both nodes: Services, headless Services, and the API server.
func (w *world) dns(t *testing.T) {
	w.apply(t, deployment("web", 4, server()), service("web", "web"), service("each", "web", "clusterIP", "None"))
	pods := w.ready(t, "web", 4)
	var addrs []netip.Addr
	for _, p := range pods {
		addrs = append(addrs, p.addr)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	for _, node := range w.Nodes {
		from := onNode(pods, node.Name)[0]
		w.resolves(t, from, "web", w.serviceAddr(t, "web").addr)
		w.resolves(t, from, "each", addrs...)
		await(t, func() error {
			out, err := w.sh(from, "curl -sk https://kubernetes.default.svc/version")
			if err == nil && !strings.Contains(out, "gitVersion") {
				err = fmt.Errorf("%s: the API server answers %q", node.Name, out)
			}
			return err
		})
	}
}

func (w *world) resolves(t *testing.T, from pod, name string, want ...netip.Addr) {
	t.Helper()
	await(t, func() error {
		out, err := w.sh(from, fmt.Sprintf("dig +short +timeout=2 @%s %s.default.svc.cluster.local", cluster.DNS, name))
		if err != nil {
			return err
		}
		var got []netip.Addr
		for l := range strings.FieldsSeq(out) {
			a, err := netip.ParseAddr(l)
			if err != nil {
				return fmt.Errorf("dig on %s: %q", from.node, out)
			}
			got = append(got, a)
		}
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s: %s is %v, want %v", from.node, name, got, want)
		}
		return nil
	})
}

func (w *world) hostPort(t *testing.T) {
	spec := server()
	spec["containers"].([]object)[0]["ports"] = []object{{"containerPort": port, "hostPort": 8081}}
	w.apply(t, podOn("host-port", "node1", spec), podOn("client", "node2", server()))
	w.ready(t, "host-port", 1)
	client := w.ready(t, "client", 1)[0]
	at := netip.AddrPortFrom(w.Nodes[0].Addr(), 8081)
	for name, from := range map[string]*nl.NS{"master": w.Master.NS, "peer": w.Peer.NS, "node1": w.Nodes[0].NS} {
		await(t, func() error {
			if _, err := seenBy(from, at); err != nil {
				return fmt.Errorf("%s calls the hostPort: %w", name, err)
			}
			return nil
		})
	}
	await(t, func() error { _, err := w.call(client, "http", at); return err })
}

// hostNetwork checks calls between a pod with its own network and a pod with the node's network, in both directions.
func (w *world) hostNetwork(t *testing.T) {
	spec := server()
	spec["hostNetwork"] = true
	w.apply(t, podOn("host", "node1", spec), podOn("same", "node1", server()), podOn("other", "node2", server()))
	host := w.ready(t, "host", 1)[0]
	if host.addr != w.Nodes[0].Addr() {
		t.Fatalf("the pod in the node's network has the address %s", host.addr)
	}
	same, other := w.ready(t, "same", 1)[0], w.ready(t, "other", 1)[0]
	for _, p := range []pod{same, other} {
		w.sees(t, p, "http", netip.AddrPortFrom(host.addr, port), p.addr)
		w.sees(t, host, "http", netip.AddrPortFrom(p.addr, port), host.addr)
	}
}
