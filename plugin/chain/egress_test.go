// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"errors"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// TestEgressOfPod: a client or a router has its tunnel once, on a node with a strict rp_filter, too. A further attachment of the
// pod has nothing of it, and its DEL takes nothing.
func TestEgressOfPod(t *testing.T) {
	nltest.Need(t, "fou")
	for keys, role := range map[string]string{"namespaces": egress.Client, "routers": egress.Router} {
		t.Run(role, func(t *testing.T) {
			n := newNode(t)
			pod, path := nltest.NS(t, "pod")
			for _, link := range []string{"all", "default"} {
				n.must(nl.Sysctl{Key: "net/ipv4/conf/" + link + "/rp_filter", Value: "1"}.Add(pod))
			}
			bare := nltest.Dump(t, pod)
			first, further := n.request(path, egressing(keys)), n.request(path, egressing(keys))
			further.IfName = "net1"
			result, err := n.ADD(first)
			n.must(err)
			made := nltest.Dump(t, pod)
			if _, err := n.ADD(first); err != nil {
				t.Errorf("ADD again: %v", err)
			}
			n.same("the second ADD changed something", made, nltest.Dump(t, pod))
			n.anySource(pod)
			if s, err := egress.Read(pod); err != nil || s.Role != role {
				t.Errorf("the pod is %+v, want a %s; %v", s, role, err)
			}
			second, err := n.ADD(further)
			n.must(err)
			n.must(n.CHECK(first, result))
			n.must(n.CHECK(further, second))
			n.must(n.DEL(further))
			n.same("the further attachment has changed something", made, nltest.Dump(t, pod))
			n.must(n.CHECK(first, result))
			first.Prev = result
			n.must(n.DEL(first))
			n.same("DEL left something", bare, nltest.Dump(t, pod))
			n.vacant()
		})
	}
}

// TestEgressOfRepairedPod: a client or a router whose veth pair was deleted and put back, as cni-tool repair does, checks no sources
// at the new link either.
func TestEgressOfRepairedPod(t *testing.T) {
	nltest.Need(t, "fou")
	for _, keys := range []string{"namespaces", "routers"} {
		n := newNode(t)
		pod, path := nltest.NS(t, "pod")
		n.must(nl.Wiring{{NS: pod, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "2"}}}.Add()) // as systemd sets it
		r := n.request(path, egressing(keys))
		_, err := n.ADD(r)
		n.must(err)
		n.must(nl.Veth{Name: "eth1"}.Del(pod))
		_, err = n.three(r) // without egress
		n.must(err)
		n.anySource(pod)
		n.must(n.DEL(r))
	}
}

// anySource wants no link of a pod to check sources.
func (n node) anySource(pod *nl.NS) {
	n.Helper()
	for _, link := range []string{"all", "eth0", "eth1", egress.Link4} {
		if v, err := pod.Sysctl("net/ipv4/conf/" + link + "/rp_filter"); err != nil || v != "0" {
			n.Errorf("rp_filter of %s is %s, want 0; %v", link, v, err)
		}
	}
}

// TestEgressRefused: a pod that may not have what it asks for has nothing at all. Its error names the egress, and what to do.
func TestEgressRefused(t *testing.T) {
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	bare := nltest.Dump(t, pod)
	r := n.request(path, egressing("routers")+`, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"cni-ipvlan-vpc-k8s/egress": "e"}}`)
	r.Pod.Namespace = "shop"
	_, err := n.ADD(r)
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeRefused || !strings.Contains(err.Error(), "the egress e does not allow it to pods of the namespace") {
		t.Errorf("got %v", err)
	}
	n.same("a pod that was refused has something", bare, nltest.Dump(t, pod))
	n.vacant()
	n.must(n.DEL(r))
}

// TestEgressOfAnotherPod: the DEL of another pod, whose path leads to this one now, takes nothing.
func TestEgressOfAnotherPod(t *testing.T) {
	nltest.Need(t, "fou")
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	r := n.request(path, egressing("namespaces"))
	_, err := n.ADD(r)
	n.must(err)
	made := nltest.Dump(t, pod)
	stale := n.request(path, egressing("namespaces")) // of a container that has gone, whose path leads here now
	stale.ContainerID = "gone"
	n.must(n.DEL(stale))
	n.same("the DEL of another pod has changed something", made, nltest.Dump(t, pod))
	n.must(n.DEL(r))
}
