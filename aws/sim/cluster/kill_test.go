// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// kills kills the programs of both nodes while they create pods. All pods must come, each with an address of its own, and
// nothing may remain of them.
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

// begun waits until the nodes have so many leases for pods that are not CoreDNS.
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

// callAll checks that pods can be called from the nodes' VPC and from the peer.
func (w *world) callAll(t *testing.T, pods []pod) {
	t.Helper()
	for _, p := range pods {
		for name, from := range map[string]*nl.NS{"master": w.Master.NS, "peer": w.Peer.NS, "node1": w.Nodes[0].NS, "node2": w.Nodes[1].NS} {
			if _, err := get(from, netexec(p.addr, "hostname")); err != nil {
				t.Errorf("%s calls %s on %s: %v", name, p.name, p.node, err)
			}
		}
	}
}

// unique checks that no two pods have one address, in the API and in the registries. A pod counts until its end.
func (w *world) unique(ctx context.Context) error {
	out, err := w.Kubectl(ctx, "get", "pods", "-A", "-o", "json", "--field-selector=status.phase!=Failed,status.phase!=Succeeded")
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

// churn creates pods, and deletes them while some of them are still created.
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
