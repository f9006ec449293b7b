// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// A world is a cluster, with the data of the scenarios.
type world struct {
	*cluster.Cluster
	logs    string                // the directory of the logs
	before  map[string]*nodeState // the nodes' states after the start, by node
	table   table
	figures []string // lines to print at the end
	spoofed int      // number of attackers' packets that the fabric has dropped because of the packets' source address
}

type object = map[string]any

// A pod is a Kubernetes pod that is ready.
type pod struct {
	name, node string
	addr       netip.Addr
	addrs      []netip.Addr // of all families
}

// patience is how long a scenario waits for the cluster. A busy machine takes several times as long as an idle machine.
const patience = 15 * time.Minute

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// await repeats try until it succeeds. After patience, await ends the test.
func await(t *testing.T, try func() error) {
	t.Helper()
	check(t, cluster.Await(t.Context(), patience, try))
}

// apply applies objects, and deletes them after the test.
func (w *world) apply(t *testing.T, objects ...object) {
	t.Helper()
	list := must(json.Marshal(object{"apiVersion": "v1", "kind": "List", "items": objects}))
	check(t, w.Apply(t.Context(), string(list)))
	t.Cleanup(func() {
		for _, o := range objects {
			w.remove(t, o["kind"].(string), o["metadata"].(object)["name"].(string))
		}
	})
}

func (w *world) remove(t *testing.T, kind, name string) {
	if _, err := w.Kubectl(context.Background(), "delete", "--ignore-not-found", "--cascade=foreground", kind,
		name); err != nil {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func meta(name string) object { return object{"name": name} }

func labels(name string) object { return object{"app": name} }

func container(args ...string) object {
	return object{
		"name": "agnhost", "image": cluster.Agnhost, "imagePullPolicy": "Never", "args": args,
		"ports": []object{{"containerPort": port}},
		"readinessProbe": object{"httpGet": object{"path": "/healthz", "port": port}, "periodSeconds": 1,
			"timeoutSeconds": 5},
	}
}

// podSpec returns the spec of a pod with one container. After its deletion, the pod has one second to end.
func podSpec(c object) object {
	return object{"containers": []object{c}, "terminationGracePeriodSeconds": 1}
}

func server() object { return podSpec(container("netexec")) }

func podOn(name, node string, spec object) object {
	spec["nodeName"] = node
	return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name, "labels": labels(name)},
		"spec": spec}
}

// deployment returns a Deployment whose pods are spread over the nodes.
func deployment(name string, replicas int, spec object) object {
	spec["topologySpreadConstraints"] = []object{{
		"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
		"labelSelector": object{"matchLabels": labels(name)},
	}}
	return object{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta(name),
		"spec": object{
			"replicas": replicas, "selector": object{"matchLabels": labels(name)},
			"template": object{"metadata": object{"labels": labels(name)}, "spec": spec},
		},
	}
}

// service returns a Service of an app's pods. Its TCP port 80 and its UDP port 81 lead to netexec. fields has pairs of
// a key of the Service's spec and a value.
func service(name, app string, fields ...any) object {
	spec := object{
		"selector": labels(app),
		"ports": []object{
			{"name": "http", "port": 80, "targetPort": port},
			{"name": "udp", "port": 81, "targetPort": port + 1, "protocol": "UDP"},
		},
	}
	for i := 0; i < len(fields); i += 2 {
		spec[fields[i].(string)] = fields[i+1]
	}
	return object{"apiVersion": "v1", "kind": "Service", "metadata": meta(name), "spec": spec}
}

// A serviceAddr has the addresses of a Service.
type serviceAddr struct {
	addr              netip.Addr // the ClusterIP
	http, udp         uint16     // the ports at the ClusterIP
	nodeHTTP, nodeUDP uint16     // the NodePorts
}

func (w *world) serviceAddr(t *testing.T, name string) serviceAddr {
	t.Helper()
	var s struct {
		Spec struct {
			ClusterIP string
			Ports     []struct{ Port, NodePort uint16 }
		}
	}
	w.read(t, &s, "service", name)
	a := serviceAddr{http: s.Spec.Ports[0].Port, udp: s.Spec.Ports[1].Port, nodeHTTP: s.Spec.Ports[0].NodePort,
		nodeUDP: s.Spec.Ports[1].NodePort}
	a.addr, _ = netip.ParseAddr(s.Spec.ClusterIP) // not for a headless Service, whose ClusterIP is None
	return a
}

func (w *world) read(t *testing.T, into any, what ...string) {
	t.Helper()
	out, err := w.Kubectl(t.Context(), append([]string{"get", "-o", "json"}, what...)...)
	check(t, err)
	check(t, json.Unmarshal([]byte(out), into))
}

// pods returns the pods of an app that are ready and not about to end.
func (w *world) pods(ctx context.Context, app string) ([]pod, error) {
	out, err := w.Kubectl(ctx, "get", "pods", "-o", "json", "-l", "app="+app)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				DeletionTimestamp *time.Time
			}
			Spec   struct{ NodeName string }
			Status struct {
				PodIPs     []struct{ IP netip.Addr }
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	var pods []pod
	for _, i := range list.Items {
		ready := false
		for _, c := range i.Status.Conditions {
			ready = ready || c.Type == "Ready" && c.Status == "True"
		}
		if !ready || i.Metadata.DeletionTimestamp != nil {
			continue
		}
		p := pod{name: i.Metadata.Name, node: i.Spec.NodeName, addr: i.Status.PodIPs[0].IP}
		for _, a := range i.Status.PodIPs {
			p.addrs = append(p.addrs, a.IP)
		}
		pods = append(pods, p)
	}
	return pods, nil
}

// ready waits until exactly n pods of an app are ready, and returns them.
func (w *world) ready(t *testing.T, app string, n int) (pods []pod) {
	t.Helper()
	await(t, func() (err error) {
		if pods, err = w.pods(t.Context(), app); err == nil && len(pods) != n {
			err = fmt.Errorf("%s has %d pods that are ready, want %d\n%s", app, len(pods), n, w.describe(app))
		}
		return err
	})
	return pods
}

// describe returns what Kubernetes says about an app's pods.
func (w *world) describe(app string) string {
	out, err := w.Kubectl(context.Background(), "get", "pods", "-o", "wide", "-l", "app="+app)
	events, err2 := w.Kubectl(context.Background(), "get", "events", "--field-selector=type=Warning")
	return strings.Join([]string{out, events, fmt.Sprint(err, err2)}, "\n")
}

func (w *world) node(name string) *cluster.Node {
	for _, n := range w.Nodes {
		if n.Name == name {
			return n
		}
	}
	panic("there is no " + name)
}
