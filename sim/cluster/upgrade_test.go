// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/cluster"
)

// upgrade changes a node from the conflist of the original plugin to the conflist of our single plugin, as documented.
// Running pods must lose no call. The single plugin makes new pods, and deletes the old pods without leftovers.
func (w *world) upgrade(t *testing.T) {
	n := w.join(t, "upgrades", cluster.NodeOptions{Conflist: edited(t, "original", object{"routeToVpcPeers": true})})
	clean := findings(t, n)
	w.apply(t, podOn("old", n.Name, server()), podOn("ends", n.Name, server()), podOn("stays", n.Name, server()),
		podOn("other", "node1", server()), service("other", "other"))
	old, stays, other := w.ready(t, "old", 1)[0], w.ready(t, "stays", 1)[0], w.ready(t, "other", 1)[0]
	w.ready(t, "ends", 1)
	s := w.serviceAddr(t, "other")
	virtual := netip.AddrPortFrom(s.addr, s.http)
	w.sees(t, old, "http", virtual, old.addr)
	stop := calls(
		func() error { _, err := get(w.Peer.NS, netexec(old.addr, "clientip")); return err },
		func() error { _, err := w.call(old, "http", serverOf(stays)); return err },
		func() error { _, err := w.call(old, "udp", virtualUDP(s)); return err },
		func() error { _, err := w.call(old, "http", virtual); return err },
		func() error { _, err := w.call(other, "http", serverOf(old)); return err })
	check(t, n.Configure(t.Context(), conflist(t, "10-cni-ipvlan-vpc-k8s")))
	names := w.podsByOne(t, n)
	w.remove(t, "pod", "ends")
	for _, name := range names {
		p := w.ready(t, name, 1)[0]
		w.sees(t, old, "http", serverOf(p), old.addr)
		w.sees(t, p, "http", virtual, p.addr)
	}
	made, lost := stop()
	t.Logf("%d calls", made)
	for _, err := range lost {
		t.Error(err)
	}
	for _, name := range append(names, "old", "stays") {
		w.remove(t, "pod", name)
	}
	w.endsClean(t, n, clean)
}

// endsClean runs a collection on a node whose pods have ended. No leases may be left, and doctor may find nothing new.
func (w *world) endsClean(t *testing.T, n *cluster.Node, before []string) {
	t.Helper()
	w.collected(t, n, nil)
	for _, f := range findings(t, n) {
		if !slices.Contains(before, f) {
			t.Errorf("after all pods of %s have ended, the doctor finds: %s", n.Name, f)
		}
	}
}

func virtualUDP(s serviceAddr) netip.AddrPort { return netip.AddrPortFrom(s.addr, s.udp) }

// calls runs the functions one after the other, again and again, until the caller calls stop. stop returns how many
// calls were made, and the errors of the failed calls.
func calls(all ...func() error) (stop func() (made int, lost []error)) {
	end, ended := make(chan struct{}), make(chan struct{})
	var made int
	var lost []error
	go func() {
		defer close(ended)
		for {
			for _, call := range all {
				made++
				if err := call(); err != nil {
					lost = append(lost, err)
				}
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	return func() (int, []error) {
		close(end)
		<-ended
		return made, lost
	}
}

// podsByOne starts pods until the single plugin has made one of them. The runtime reads the new conflist a moment after
// the rename.
func (w *world) podsByOne(t *testing.T, n *cluster.Node) (names []string) {
	t.Helper()
	for {
		name := fmt.Sprint("new", len(names))
		names = append(names, name)
		w.apply(t, podOn(name, n.Name, server()))
		w.ready(t, name, 1)
		if !strings.Contains(configOf(t, n, name), "cni-ipvlan-vpc-k8s-ipam") {
			return names
		}
	}
}

// configOf returns the network configuration with which the runtime has added a pod. libcni stores it in a file.
func configOf(t *testing.T, n *cluster.Node, pod string) string {
	t.Helper()
	kept, err := filepath.Glob(n.File("/var/lib/cni/results/*"))
	check(t, err)
	for _, file := range kept {
		b, err := os.ReadFile(file)
		check(t, err)
		var r struct {
			Config  []byte
			CNIArgs [][2]string `json:"cniArgs"`
		}
		check(t, json.Unmarshal(b, &r))
		if slices.Contains(r.CNIArgs, [2]string{"K8S_POD_NAME", pod}) {
			return string(r.Config)
		}
	}
	t.Fatalf("%s: the runtime has no configuration of the pod %s", n.Name, pod)
	return ""
}
