// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// exhaustion checks a node whose kubelet accepts more pods than the node has addresses. The last pod has to wait. Its
// event names the exhausted resource, and tells what to do. This pod starts when another pod has ended.
func (w *world) exhaustion(t *testing.T) {
	n := w.join(t, "small", cluster.NodeOptions{
		Conflist: edited(t, "10-cni-ipvlan-vpc-k8s", object{"reuseIPWait": 5}),
		Type:     "t3.nano", MaxPods: 10, // two ENIs with two addresses each; only one ENI serves pods
	})
	w.apply(t, podOn("first", n.Name, server()), podOn("second", n.Name, server()))
	first, second := w.ready(t, "first", 1)[0], w.ready(t, "second", 1)[0]
	w.staysReady(t, n.Name, func() {
		w.apply(t, podOn("late", n.Name, server()))
		w.failsWith(t, "late", "instance is full", n.ID+" has 2 ENIs of at most 2",
			"this t3.nano can have no more ENIs", "lower --max-pods")
	})
	w.sees(t, first, "http", serverOf(second), first.addr)
	w.remove(t, "pod", "first")
	if late := w.ready(t, "late", 1)[0]; late.addr != first.addr {
		t.Errorf("late has the address %s: want %s, which the other pod had", late.addr, first.addr)
	}
}

// failsWith waits until the events about a pod's failed sandboxes contain all the reasons.
func (w *world) failsWith(t *testing.T, pod string, reasons ...string) {
	t.Helper()
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "get", "events",
			"--field-selector=reason=FailedCreatePodSandBox,involvedObject.name="+pod,
			"-o", `jsonpath={range .items[*]}{.message}{"\n"}{end}`)
		for _, r := range reasons {
			if err == nil && !strings.Contains(out, r) {
				err = fmt.Errorf("the events of %s do not have %q: %s", pod, r, out)
			}
		}
		return err
	})
}

func (w *world) join(t *testing.T, name string, o cluster.NodeOptions) *cluster.Node {
	t.Helper()
	n, err := w.AddNode(t.Context(), name, o)
	if n != nil {
		t.Cleanup(func() { check(t, w.RemoveNode(context.Background(), n)) })
	}
	check(t, err)
	check(t, w.NodesReady(t.Context()))
	return n
}

// edited returns a shipped conflist, with more keys in its first plugin.
func edited(t *testing.T, name string, keys object) []byte {
	t.Helper()
	var list object
	check(t, json.Unmarshal(conflist(t, name), &list))
	maps.Copy(list["plugins"].([]any)[0].(object), keys)
	return must(json.Marshal(list))
}
