// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// routerMoves checks an egress with one router. The router asks for a certain address, as in docs/egress.md. The router
// moves four times between two nodes, while a client on each node calls a host of a peered VPC. In all calls, the host
// must see the router's address. The scenario measures the longest time in which a client got no answer.
func (w *world) routerMoves(t *testing.T) {
	t.Cleanup(w.Fabric.EC2.DelayAsEC2())
	seen := &callLog{from: map[netip.Addr]int{}}
	to := w.listen(t, seen.serve)
	keys := choosing("default", routing)
	keys["egress"] = object{"partner": object{
		"gateways": []string{gateway}, "destinations": []string{to.Addr().String()},
		"selectable": []string{"default"}, "routers": []string{routing},
	}}
	w.reconfigure(t, keys)
	nodes := w.Nodes[:2]
	for _, n := range nodes {
		w.startUnits(t, n)
	}
	w.near(t, nodes...)
	w.apply(t, append(entrance(), router())...)
	e := &egressing{w, to, map[string]netip.Addr{}}
	e.routerAt(t)
	var clients []*partnerCaller
	for _, n := range nodes {
		clients = append(clients, e.calling(t, n))
	}
	var longest time.Duration
	const moves = 4
	for range moves {
		e.moveRouter(t, clients)
	}
	for _, c := range clients {
		c.end()
		longest = max(longest, c.longest)
		t.Logf("the client on %s: %d calls have an answer, %d have none; it was without one for %v at most", c.node,
			c.answered, c.failed, c.longest)
	}
	if all := seen.all(); len(all) != 1 || all[ofRouter] == 0 {
		t.Errorf("the partner has seen calls from %v, want all from %s", all, ofRouter)
	}
	w.figures = append(w.figures, fmt.Sprintf("egress, a router with a chosen address has moved %d times: clients had "+
		"no answer for %.1f s at most; the partner has seen %d calls, all from %s", moves, longest.Seconds(),
		seen.all()[ofRouter], ofRouter))
}

// entrance returns the routers' Kubernetes namespace and the routers' Service.
func entrance() []object {
	return []object{
		{"apiVersion": "v1", "kind": "Namespace", "metadata": meta(routing)},
		{"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "partner", "namespace": routing},
			"spec": object{
				"clusterIP": gateway, "selector": object{"egress": "partner"},
				"ports":                 []object{{"port": 5555, "protocol": "UDP"}},
				"sessionAffinity":       "ClientIP",
				"sessionAffinityConfig": object{"clientIP": object{"timeoutSeconds": 86400}},
			}},
	}
}

func router() object {
	spec := pausing()
	spec["affinity"] = object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{
		"nodeSelectorTerms": []object{{"matchExpressions": []object{
			{"key": "kubernetes.io/hostname", "operator": "In", "values": []string{"node1", "node2"}}}}}}}}
	s := statefulSet("partner-a", ofRouter, object{"egress": "partner", "router": "a"}, spec)
	s["metadata"].(object)["namespace"] = routing
	return s
}

// routerAt waits until the router is ready with its chosen address, and returns its node.
func (e *egressing) routerAt(t *testing.T) *cluster.Node {
	t.Helper()
	if all := e.routersAre(t, 1); all["partner-a-0"] != ofRouter {
		t.Fatalf("the routers are %v, want %s", all, ofRouter)
	}
	name, err := e.Kubectl(t.Context(), "-n", routing, "get", "pod", "partner-a-0", "-o", "jsonpath={.spec.nodeName}")
	check(t, err)
	return e.node(name)
}

// moveRouter moves the router to the other node, and waits until all clients get answers again.
func (e *egressing) moveRouter(t *testing.T, clients []*partnerCaller) {
	t.Helper()
	from := e.routerAt(t)
	e.cordon(t, from)
	e.kubectl(t, "-n", routing, "delete", "pod", "partner-a-0")
	if to := e.routerAt(t); to == from {
		t.Fatalf("the router is on %s after it has moved", to.Name)
	}
	e.mayHavePods(t, from)
	for _, c := range clients {
		before := c.answers()
		await(t, func() error {
			if c.answers() < before+2 { // the first answer may be from before the move
				return fmt.Errorf("the client on %s has no answer: %v", c.node, c.last())
			}
			return nil
		})
	}
}

// A callLog counts the calls to a host, by source address.
type callLog struct {
	mu   sync.Mutex
	from map[netip.Addr]int
}

func (l *callLog) serve(_ http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a, _ := netip.ParseAddrPort(r.RemoteAddr)
	l.from[a.Addr().Unmap()]++
}

func (l *callLog) all() map[netip.Addr]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.from)
}

// A partnerCaller is a pod that calls the partner again and again. Each call uses a new connection, and takes at most a
// second.
type partnerCaller struct {
	node string
	end  func() // end also waits until the last call has ended

	mu               sync.Mutex
	answered, failed int
	since            time.Time // the time of the last answer
	longest          time.Duration
	err              error // of the last call
}

// calling starts a partnerCaller on a node, and waits for its first answer. The partnerCaller stops at the end of the
// test, if not before.
func (e *egressing) calling(t *testing.T, n *cluster.Node) *partnerCaller {
	t.Helper()
	p := podOn("client-"+n.Name, n.Name, server())
	p["metadata"].(object)["annotations"] = object{"cni-ipvlan-vpc-k8s/egress": "partner"}
	e.apply(t, p)
	from, url := e.inside(t, e.ready(t, "client-"+n.Name, 1)[0]), fmt.Sprintf("http://%s/", e.to)
	answers(t, from, url)
	c, stop := &partnerCaller{node: n.Name, since: time.Now()}, make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_, err := getWithin(from, url, time.Second)
				c.note(err)
			}
		}
	})
	c.end = sync.OnceFunc(func() { close(stop); running.Wait() })
	t.Cleanup(c.end)
	return c
}

func (c *partnerCaller) note(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err = err; err != nil {
		c.failed++
		return
	}
	now := time.Now()
	c.answered, c.longest, c.since = c.answered+1, max(c.longest, now.Sub(c.since)), now
}

func (c *partnerCaller) answers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.answered
}

func (c *partnerCaller) last() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}
