// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// These are addresses of subnet-pods1 for which pods ask. EC2 chooses addresses for other pods in ascending order, and
// does not get as far as these addresses.
var (
	ofDatabase = netip.MustParseAddr("100.64.9.10")
	ofRouter   = netip.MustParseAddr("100.64.9.11")
	ofNearby   = netip.MustParseAddr("100.64.9.20") // the function near uses this address and the next addresses
)

// follows checks that the address of a StatefulSet's pod moves with the pod to another node. The pod moves three times:
// after its deletion, after a drain of its node, and after its node is killed. follows measures how soon the address
// answers after the DEL of the old pod, or after the end of the killed node. EC2 delays its answers (see DelayAsEC2),
// and the installed units run.
func (w *world) follows(t *testing.T) {
	t.Cleanup(w.Fabric.EC2.DelayAsEC2())
	conflist := edited(t, "10-cni-ipvlan-vpc-k8s", choosing("default"))
	f := &following{world: w}
	for _, name := range []string{"home", "away"} {
		n := w.join(t, name, cluster.NodeOptions{Conflist: conflist})
		w.kubectl(t, "label", "node", name, "database=here")
		w.startUnits(t, n)
		f.nodes = append(f.nodes, n)
	}
	w.near(t, f.nodes...)
	spec := server()
	spec["nodeSelector"] = object{"database": "here"}
	w.apply(t, statefulSet("db", ofDatabase, labels("db"), spec))
	f.at(t)

	f.move(t, "pod deleted", func(from *cluster.Node) {
		w.cordon(t, from)
		w.kubectl(t, "delete", "pod", "db-0")
	})
	f.move(t, "node drained", func(from *cluster.Node) {
		w.cordon(t, from)
		w.kubectl(t, "drain", from.Name, "--force", "--ignore-daemonsets", "--delete-emptydir-data",
			fmt.Sprint("--timeout=", patience))
	})
	f.move(t, "node killed", func(from *cluster.Node) {
		w.cordon(t, from)
		check(t, from.PowerOff())
		w.kubectl(t, "delete", "pod", "db-0", "--force", "--grace-period=0")
	})
}

// choosing returns keys for a conflist: pods of these namespaces may then choose their addresses.
func choosing(namespaces ...string) object {
	return object{
		"requests":     []object{{"namespaces": namespaces, "ips": true, "takeover": true}},
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
	}
}

func asking(a netip.Addr) object {
	return object{"cni-ipvlan-vpc-k8s/nics": fmt.Sprintf(`[{"ip": %q}]`, a)}
}

// statefulSet returns a StatefulSet with one pod, which asks for the address a.
func statefulSet(name string, a netip.Addr, labels, spec object) object {
	return object{
		"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta(name),
		"spec": object{
			"replicas": 1, "serviceName": name, "selector": object{"matchLabels": labels},
			"template": object{"metadata": object{"labels": labels, "annotations": asking(a)}, "spec": spec},
		},
	}
}

// startUnits starts cni-warm.path, which docs/install.md enables. This unit also starts cni-release.path.
func (w *world) startUnits(t *testing.T, n *cluster.Node) {
	t.Helper()
	stop, err := n.Watch(w.logs, "cni-warm.path")
	check(t, err)
	t.Cleanup(stop)
}

// near gives each node a pod in the subnet of the chosen addresses, so that the node has an ENI in this subnet.
func (w *world) near(t *testing.T, nodes ...*cluster.Node) {
	t.Helper()
	a := ofNearby
	for _, n := range nodes {
		p := podOn("near-"+n.Name, n.Name, pausing())
		p["metadata"].(object)["annotations"] = asking(a)
		w.apply(t, p)
		if got := w.ready(t, "near-"+n.Name, 1)[0].addr; got != a {
			t.Fatalf("near-%s has the address %s, want %s", n.Name, got, a)
		}
		a = a.Next()
	}
}

func (w *world) cordon(t *testing.T, n *cluster.Node) {
	t.Helper()
	w.kubectl(t, "cordon", n.Name)
	t.Cleanup(func() { w.mayHavePods(t, n) })
}

func (w *world) mayHavePods(t *testing.T, n *cluster.Node) {
	t.Helper()
	_, err := w.Kubectl(context.Background(), "uncordon", n.Name)
	check(t, err)
}

// A following is the pod that chooses its address, with the two nodes on which the pod may run.
type following struct {
	*world
	nodes []*cluster.Node
}

// at waits until the pod is ready, and returns its node and the other node. The pod must have exactly the chosen
// address.
func (f *following) at(t *testing.T) (is, other *cluster.Node) {
	t.Helper()
	p := f.ready(t, "db", 1)[0]
	if !slices.Equal(p.addrs, []netip.Addr{ofDatabase}) {
		t.Fatalf("%s has the addresses %s on %s, want %s", p.name, p.addrs, p.node, ofDatabase)
	}
	if p.node == f.nodes[0].Name {
		return f.nodes[0], f.nodes[1]
	}
	return f.nodes[1], f.nodes[0]
}

// move makes a change. After the change, the pod must be on the other node, with its address. move adds the times of
// the move to the figures.
func (f *following) move(t *testing.T, what string, change func(from *cluster.Node)) {
	t.Helper()
	from, to := f.at(t)
	defer f.revive(t, from)
	seen := f.observe(t, from, to)
	change(from)
	m := <-seen
	check(t, m.err)
	if is, _ := f.at(t); is != to {
		t.Fatalf("%s: the pod is on %s, want %s", what, is.Name, to.Name)
	}
	f.figures = append(f.figures, fmt.Sprintf("chosen address, %s: %s", what, m))
	t.Log(what, m)
}

// revive lets a node have pods again. If the node is off, revive starts it, and waits until the node agrees with EC2.
// No address may be leased on two nodes.
func (f *following) revive(t *testing.T, n *cluster.Node) {
	t.Helper()
	if n.IsOff() {
		check(t, n.PowerOn(context.Background()))
		check(t, f.NodesReady(context.Background()))
		f.startUnits(t, n)
		await(t, func() error { return agrees(t.Context(), n) })
	}
	f.mayHavePods(t, n)
	check(t, f.apart())
}

// A moving has the times of an address's move. The field "ended" is the time when the DEL has ended the lease. If the
// field "off" is set, there was no DEL, and "ended" is the time when the old node went off.
type moving struct {
	ended, released, assigned, answers time.Time
	off                                bool
	err                                error
}

func (m moving) String() string {
	of := "the DEL"
	if m.off {
		of = "the end of its instance"
	}
	after := func(at time.Time) string { return fmt.Sprintf("%.1f s", at.Sub(m.ended).Seconds()) }
	return fmt.Sprintf("the time from %s is %s until the old ENI has it no more, %s until the new ENI has it, and %s "+
		"until it answers", of, after(m.released), after(m.assigned), after(m.answers))
}

// observe watches the move of the address between two nodes. It looks for the lease in the registry of the old node,
// and for the address in EC2. After the end of the lease, it calls the address until the new node answers.
func (f *following) observe(t *testing.T, from, to *cluster.Node) <-chan moving {
	t.Helper()
	done, answers := make(chan moving, 1), make(chan time.Time, 1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	dir := from.File(state) // look it up now, because a node that is off has no files
	go func() {
		defer cancel()
		var m moving
		for m.answers.IsZero() && m.err == nil {
			if now := time.Now(); m.ended.IsZero() && ended(from, dir) {
				m.ended, m.off = now, from.IsOff()
				go func() { answers <- f.answer(ctx, to) }()
			}
			m.note(f.on(), from.ID, to.ID)
			select {
			case m.answers = <-answers:
			case <-ctx.Done():
				m.err = fmt.Errorf("%s has not moved from %s to %s: %+v", ofDatabase, from.Name, to.Name, m)
			case <-time.After(10 * time.Millisecond):
			}
		}
		done <- m
	}()
	return done
}

func (m *moving) note(on, from, to string) {
	now := time.Now()
	if on != from && m.released.IsZero() {
		m.released = now
	}
	if on == to && m.assigned.IsZero() {
		m.assigned = now
	}
}

// ended reports whether the DEL has ended the lease of the address, or whether the node is off. dir is the directory of
// the node's registry.
func ended(n *cluster.Node, dir string) bool {
	if n.IsOff() {
		return true
	}
	r, err := registry.Open(dir)
	if err != nil {
		return false // the node is just going off
	}
	s, err := r.View()
	return err == nil && !s.Leases.Has(ofDatabase) && len(s.ENIs) > 0
}

// on returns the instance that has the address in EC2.
func (f *following) on() string {
	for _, e := range f.Fabric.EC2.ENIs() {
		if slices.Contains(e.Addrs, ofDatabase) {
			return e.Instance
		}
	}
	return ""
}

// answer calls the address from the peered VPC until the new node answers. It accepts an answer only if the new node's
// registry has the lease, because the answer may come from the old node. It returns the time of the accepted answer.
func (f *following) answer(ctx context.Context, to *cluster.Node) time.Time {
	for ctx.Err() == nil {
		if _, err := getWithin(f.Peer.NS, netexec(ofDatabase, "hostname"), 300*time.Millisecond); err == nil {
			at := time.Now()
			if s, err := leases(to); err == nil && s.Leases.Has(ofDatabase) {
				return at
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return time.Time{}
}
