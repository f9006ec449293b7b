// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package lease

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestFoundLease: without a registry, FoundLease finds the pod of an address by the veth pair, or else by the runtime's
// files. If the files name several pods, FoundLease returns no pod.
func TestFoundLease(t *testing.T) {
	nltest.Need(t, "root")
	node, _ := nltest.NS(t, "node")
	kept := t.TempDir()
	was := KeptIn
	KeptIn = []string{filepath.Join(kept, "none"), kept}
	t.Cleanup(func() { KeptIn = was })
	keep := func(file, netns, addr, pod string) {
		t.Helper()
		text := fmt.Sprintf(`{"kind": "cniCacheV1", "containerId": %q, "ifName": "eth0", "networkName": "net", "netns": %q,
			"cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", %q]], "result": {"cniVersion": "1.0.0", "ips": [{"address": %q}]}}`, file, netns, pod, addr)
		if err := os.WriteFile(filepath.Join(kept, "net-"+file+"-eth0"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths := map[string]string{}
	for i, name := range []string{"paired", "kept", "both", "torn", "unknown", "old"} {
		ns, path := nltest.NS(t, name)
		paths[name] = path
		if name == "paired" || name == "both" || name == "torn" {
			veth := nl.Veth{Name: fmt.Sprint("veth", i), Peer: "eth1", PeerNS: ns, Group: nl.OwnGroup,
				Alias: "cni-ipvlan-vpc-k8s net c" + name + " eth0 shop/" + name}
			if err := (nl.Wiring{{NS: node, Object: veth}}).Add(); err != nil {
				t.Fatal(err)
			}
		}
	}
	keep("kept", paths["kept"], "10.0.1.4/24", "kept")
	keep("both", paths["both"], "10.0.1.4/24", "both")
	keep("torn", paths["torn"], "10.0.1.4/24", "another")
	keep("other", paths["unknown"], "10.0.1.5/24", "with-another-address")
	keep("old", "", "10.0.1.4/24", "old")
	os.WriteFile(filepath.Join(kept, "net-damaged-eth0"), []byte("{"), 0o600)
	u := Used{owners: &podNames{node: node}}
	want := map[string]string{"paired": "shop/paired", "kept": "", "both": "shop/both", "torn": "shop/torn",
		"unknown": "shop/old", "old": "shop/old"}
	for name, pod := range want { // a record without a namespace makes the address ambiguous
		if got := u.FoundLease(paths[name], netip.MustParseAddr("10.0.1.4")).PodOf(); got != pod {
			t.Errorf("with a record without a namespace, %s: got %q, want %q", name, got, pod)
		}
	}
	if err := os.Remove(filepath.Join(kept, "net-old-eth0")); err != nil {
		t.Fatal(err)
	}
	u = Used{owners: &podNames{node: node}}
	want = map[string]string{"paired": "shop/paired", "kept": "shop/kept", "both": "shop/both", "torn": "shop/torn",
		"unknown": "", "old": ""}
	for name, pod := range want {
		l := u.FoundLease(paths[name], netip.MustParseAddr("10.0.1.4"))
		if got := l.PodOf(); got != pod || l.NetNS != paths[name] || !l.Bound || l.ContainerID != "" {
			t.Errorf("%s: got %q, want %q: %+v", name, got, pod, l)
		}
	}
	if l := u.FoundLease(routePlace, netip.MustParseAddr("10.0.1.4")); l.PodOf() != "" {
		t.Errorf("a route has the pod %s", l.PodOf())
	}
}
