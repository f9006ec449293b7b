// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// gateway is the ClusterIP of the routers' Service. routing is the Kubernetes namespace of the routers.
const (
	gateway = "172.20.0.77"
	routing = "egress"
)

// egress checks clients that reach a host of a peered VPC through routers. The host must see each client with the
// address of the client's router. cni-tool egress prints the objects of the routers. At first, the egress does not have
// the host as a destination. The host becomes a destination while a client and the routers run. After that, the test
// adds, deletes and kills routers, and drains a node.
func (w *world) egress(t *testing.T) {
	to := w.partner(t)
	w.destinations(t, "198.51.100.0/24")
	w.routers(t)
	e := &egressing{w, to, map[string]netip.Addr{}}
	via := slices.Collect(maps.Values(e.routersAre(t, 2)))
	e.apply(t, client("early"))
	early := w.ready(t, "early", 1)[0]
	w.sees(t, early, "http", to, early.addr)
	w.destinations(t, "198.51.100.0/24", to.Addr().String())
	for _, n := range w.Nodes[:2] {
		run(t, n.Run, tool, "repair")
	}
	await(t, func() error {
		seen, err := w.call(early, "http", to)
		if err == nil && !slices.Contains(via, seen) {
			err = fmt.Errorf("after the repair, a running client is seen as %s, want a router of %v", seen, via)
		}
		return err
	})

	plain := podOn("plain", "node1", server())
	w.apply(t, plain)
	other := w.ready(t, "plain", 1)[0]
	w.sees(t, other, "http", to, other.addr)

	clients := e.clients(t)
	e.stay(t, clients)
	w.kubectl(t, "-n", routing, "scale", "--replicas=4", "deployment", "partner")
	e.routersAre(t, 4)
	e.stay(t, clients) // a client that has a router does not change to a new router

	e.lose(t, clients, func(router string) { w.kubectl(t, "-n", routing, "delete", "--wait=false", "pod", router) })
	e.lose(t, clients, func(router string) {
		w.kubectl(t, "-n", routing, "delete", "pod", "--force", "--grace-period=0", router)
	})
	w.kubectl(t, "-n", routing, "scale", "--replicas=2", "deployment", "partner")
	e.drain(t, clients)
	w.sees(t, other, "http", to, other.addr)
}

// destinations gives the first two nodes an egress with these destinations.
func (w *world) destinations(t *testing.T, all ...string) {
	t.Helper()
	w.reconfigure(t, object{
		"egress": object{"partner": object{
			"gateways": []string{gateway}, "destinations": all,
			"selectable": []string{"default"}, "routers": []string{routing},
		}},
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
	})
}

// routers applies the output of cni-tool egress, with an image that the nodes have. The API server refuses unknown
// fields.
func (w *world) routers(t *testing.T) {
	t.Helper()
	manifest, err := w.Nodes[0].Run(t.Context(), tool, "egress", "--manifest", "partner", "--image", cluster.Pause)
	check(t, err)
	t.Cleanup(func() { w.remove(t, "namespace", routing) })
	await(t, func() error { return w.Apply(t.Context(), manifest, "--validate=strict") }) // see Apply
}

// client returns a pod on node1 that asks for the egress.
func client(name string) object {
	c := podOn(name, "node1", server())
	c["metadata"].(object)["annotations"] = object{"cni-ipvlan-vpc-k8s/egress": "partner"}
	return c
}

// partner starts a server on the host of the peered VPC. The server answers each caller with the caller's address.
func (w *world) partner(t *testing.T) netip.AddrPort {
	t.Helper()
	return w.listen(t, func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, r.RemoteAddr) })
}

func (w *world) listen(t *testing.T, serve http.HandlerFunc) netip.AddrPort {
	t.Helper()
	var l net.Listener
	check(t, w.Peer.Do(func() (err error) {
		l, err = net.Listen("tcp4", fmt.Sprint(":", port))
		return err
	}))
	s := &http.Server{Handler: serve}
	go func() { _ = s.Serve(l) }() // until Close
	t.Cleanup(func() { check(t, s.Close()) })
	return netip.AddrPortFrom(w.Peer.Addr(), port)
}

func (w *world) reconfigure(t *testing.T, keys object) {
	t.Helper()
	for _, n := range w.Nodes[:2] {
		check(t, n.Configure(t.Context(), edited(t, "portmap", keys)))
		t.Cleanup(func() { check(t, n.Configure(context.Background(), conflist(t, "portmap"))) })
	}
}

// An egressing has the destination of the egress, and the router of each client.
type egressing struct {
	*world
	to  netip.AddrPort
	via map[string]netip.Addr // the address of the client's router, by the client's name
}

// routersAre waits until exactly n routers are ready, and returns their addresses by name.
func (e *egressing) routersAre(t *testing.T, n int) map[string]netip.Addr {
	t.Helper()
	all := map[string]netip.Addr{}
	await(t, func() error {
		var list struct {
			Items []struct {
				Metadata struct {
					Name              string
					DeletionTimestamp *string
				}
				Status struct {
					PodIP      string
					Conditions []struct{ Type, Status string }
				}
			}
		}
		e.read(t, &list, "pods", "-n", routing)
		clear(all)
		for _, p := range list.Items {
			ready := slices.ContainsFunc(p.Status.Conditions,
				func(c struct{ Type, Status string }) bool { return c.Type == "Ready" && c.Status == "True" })
			if a, err := netip.ParseAddr(p.Status.PodIP); ready && err == nil && p.Metadata.DeletionTimestamp == nil {
				all[p.Metadata.Name] = a
			}
		}
		if len(all) != n {
			return fmt.Errorf("there are the routers %v, want %d", all, n)
		}
		return nil
	})
	return all
}

// clients starts pods on node1 that ask for the egress, until the pods use two routers. kube-proxy chooses a router for
// each pod at random.
func (e *egressing) clients(t *testing.T) (all []pod) {
	t.Helper()
	const most = 12
	for i := range most {
		name := fmt.Sprint("client", i)
		e.apply(t, client(name))
		p := e.ready(t, name, 1)[0]
		await(t, func() (err error) { e.via[name], err = e.call(p, "http", e.to); return err })
		if all = append(all, p); len(e.used()) > 1 {
			return all
		}
	}
	t.Fatalf("%d clients all use the router %v", most, e.used())
	return nil
}

// used returns the addresses of the routers that have clients.
func (e *egressing) used() []netip.Addr {
	var all []netip.Addr
	for _, a := range e.via {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// stay checks that each client keeps its router.
func (e *egressing) stay(t *testing.T, clients []pod) {
	t.Helper()
	for range 5 {
		for _, c := range clients {
			if seen, err := e.call(c, "http", e.to); err != nil || seen != e.via[c.name] {
				t.Errorf("%s is seen as %s, want its router %s; %v", c.name, seen, e.via[c.name], err)
			}
		}
	}
}

// lose calls the function "end", which ends the router of the first client. All clients of this router must move to
// other routers. All other clients must lose no call.
func (e *egressing) lose(t *testing.T, clients []pod, end func(router string)) {
	t.Helper()
	gone, of := e.via[clients[0].name], ""
	for name, a := range e.routersAre(t, 4) {
		if a == gone {
			of = name
		}
	}
	if of == "" {
		t.Fatalf("%s has the router %s, which is none", clients[0].name, gone)
	}
	undisturbed := e.callersBut(t, clients, gone)
	end(of)
	e.moved(t, clients, func(a netip.Addr) bool { return a == gone })
	e.routersAre(t, 4)
	for _, c := range undisturbed {
		c.report(t)
	}
	e.stay(t, clients)
}

// callersBut starts a caller in each client that does not use this router. The callers call the partner all the time.
func (e *egressing) callersBut(t *testing.T, clients []pod, router netip.Addr) (all []*caller) {
	t.Helper()
	for _, c := range clients {
		if e.via[c.name] != router {
			all = append(all, startCaller(t, c.name, e.inside(t, c), fmt.Sprintf("http://%s/", e.to)))
		}
	}
	return all
}

// moved waits until no client uses a router for which the function gone returns true.
func (e *egressing) moved(t *testing.T, clients []pod, gone func(netip.Addr) bool) {
	t.Helper()
	for _, c := range clients {
		if !gone(e.via[c.name]) {
			continue
		}
		await(t, func() error {
			seen, err := e.call(c, "http", e.to)
			if err == nil && gone(seen) {
				err = fmt.Errorf("%s still has the router %s", c.name, seen)
			}
			if err == nil {
				e.via[c.name] = seen
			}
			return err
		})
	}
}

// drain drains node2, so that all routers move to node1.
func (e *egressing) drain(t *testing.T, clients []pod) {
	t.Helper()
	t.Cleanup(func() { e.uncordon(t) })
	e.kubectl(t, "drain", "node2", "--ignore-daemonsets", "--delete-emptydir-data", fmt.Sprint("--timeout=", patience))
	left := slices.Collect(maps.Values(e.routersAre(t, 2)))
	e.moved(t, clients, func(a netip.Addr) bool { return !slices.Contains(left, a) })
	e.stay(t, clients)
}
