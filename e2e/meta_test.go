// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

// metaConflist is our chain, followed by the reference plugins that work with our chain. bandwidth does not work with
// it, because bandwidth needs a veth as the pod's interface. sbr does not work with it, because sbr removes the default
// route of our interface.
//
// The hostPort must be one of nodePorts. Otherwise the pod's rule on the node sends answers to other hosts back into
// the pod. The mark of portmap's iptables backend must not be the bit nodePortMark. portmap also marks packets of other
// pods in the subnet, and the node would not send these packets back into their pods.
const metaConflist = `{"cniVersion": "1.1.0", "name": "meta", "plugins": [
	{"type": "cni-ipvlan-vpc-k8s-ipam", "interfaceIndex": 1, "secGroupIds": [], "subnetTags": {"kubernetes_kubelet": "true"}, "reuseIPWait": 0},
	{"type": "cni-ipvlan-vpc-k8s-ipvlan"},
	{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true},
	{"type": "tuning", "sysctl": {"net.ipv4.tcp_keepalive_time": "600"}, "mtu": 1400},
	{"type": "portmap", %s, "capabilities": {"portMappings": true}},
	{"type": "firewall", "backend": "iptables"}]}`

// TestMetaPlugins runs the chain for a pod that ends with DEL, and then for a pod that ends without DEL.
func TestMetaPlugins(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "iptables")
	judgeMeta(t, "`dataPath` `ipvlan`, both backends")
	for i, keys := range []string{`"backend": "nftables"`, `"backend": "iptables", "markMasqBit": 12`} {
		for _, form := range formsOf(i) {
			t.Run(keys+" "+form.name, func(t *testing.T) {
				list, err := libcni.ConfListFromBytes(form.of(fmt.Appendf(nil, metaConflist, keys)))
				if err != nil {
					t.Fatal(err)
				}
				testMetaPlugins(t, list, false)
			})
		}
	}
}

// TestMetaRouted is TestMetaPlugins with routed pods, which see the addresses of the callers of their hostPort.
func TestMetaRouted(t *testing.T) {
	nltest.Need(t, "root", "nftables", "iptables")
	judgeMeta(t, "`dataPath` `veth`, both backends")
	routed := strings.NewReplacer(`"reuseIPWait": 0`, `"reuseIPWait": 0, "dataPath": "veth"`,
		`{"type": "cni-ipvlan-vpc-k8s-ipvlan"},`, "", `, "mtu": 1400`, "",
		`"ipMasq": true`, `"ipMasq": true, "mtu": 1400`).Replace(metaConflist)
	for i, keys := range []string{`"backend": "nftables"`, `"backend": "iptables", "markMasqBit": 4`} {
		t.Run(keys, func(t *testing.T) {
			list, err := libcni.ConfListFromBytes(forms[i].of(fmt.Appendf(nil, routed, keys)))
			if err != nil {
				t.Fatal(err)
			}
			testMetaPlugins(t, list, true)
		})
	}
}

// judgeMeta records the reference plugins as judges: their CHECK judges our results.
func judgeMeta(t *testing.T, judged string) {
	t.Helper()
	_, version := judge.Release(t, filepath.Join(peers, "portmap"))
	judge.Attr(t, "`tuning`, `portmap`, `firewall` after ours: ADD, CHECK, STATUS, GC, DEL", version, judged)
}

func testMetaPlugins(t *testing.T, list *libcni.NetworkConfigList, kept bool) {
	w := exampleVPC(t).launch(t, example{})
	do := func(verb, pod string) {
		t.Helper()
		if _, err := w.call(list, verb, pod); err != nil {
			t.Fatalf("%s %s: %v", verb, pod, err)
		}
	}
	do("STATUS", "pod")
	w.pod(t, "sibling")
	do("ADD", "sibling")
	const hostPort = 30080
	w.capabilities = map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort,
		"containerPort": examplePort, "protocol": "tcp"}}}
	add := func(callers ...string) {
		t.Helper()
		result, err := w.call(list, "ADD", "pod")
		if err != nil {
			t.Fatal(err)
		}
		seen := w.node.Addr()
		if kept {
			seen = w.host.Addr()
		}
		w.works(t, must(types100.NewResultFromResult(result)), hostPort, callers, seen)
	}
	add("sibling", "pod")
	do("CHECK", "pod")
	do("GC", "pod")
	do("CHECK", "pod")
	do("DEL", "pod")
	do("DEL", "pod")
	after := w.rules(t)
	if err := w.removePod("pod"); err != nil {
		t.Fatal(err)
	}
	w.pod(t, "pod")
	add("pod") // the pod sibling cannot call: GC has deleted its attachment
	do("GC", "another")
	if d := cmp.Diff(after, w.rules(t)); d != "" {
		t.Errorf("what is on the node when the second pod has gone; -want +got\n%s", d)
	}
}

// works checks the effect of each plugin on a pod. It calls the pod's hostPort from the pods in callers and from a host
// of the VPC. The pod must see this call from the address host.
func (w *world) works(
	t *testing.T, result *types100.Result, hostPort uint16, callers []string, host netip.Addr,
) {
	t.Helper()
	addr, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
	if err := w.host.Ping(addr.Unmap()); err != nil {
		t.Error(err)
	}
	to := netip.AddrPortFrom(w.node.Addr(), hostPort)
	if seen, err := w.host.Call("tcp", to); err != nil || seen.Addr() != host {
		t.Errorf("portmap: who calls %s is seen as %v, want %s; %v", to, seen, host, err)
	}
	for _, name := range callers {
		if _, err := w.pods[name].Call("tcp", to); err != nil {
			t.Errorf("portmap: %s calls %s: %v", name, to, err)
		}
	}
	pod := w.pods["pod"]
	if v, err := pod.Sysctl("net/ipv4/tcp_keepalive_time"); err != nil || v != "600" {
		t.Errorf("tuning: the sysctl is %s, %v", v, err)
	}
	if l, err := pod.LinkByName("eth0"); err != nil || l.MTU != 1400 {
		t.Errorf("tuning: the MTU is %d, %v", l.MTU, err)
	}
	accept := "-A CNI-FORWARD -d " + addr.Unmap().String() + "/32 "
	if rules := w.rules(t); !slices.ContainsFunc(rules, func(s string) bool { return strings.HasPrefix(s, accept) }) {
		t.Errorf("firewall: no rule %s... among\n%s", accept, strings.Join(rules, "\n"))
	}
}

// rules returns the node's links, routes and rules, including those of iptables.
func (w *world) rules(t *testing.T) []string {
	t.Helper()
	all := strings.Split(nltest.Dump(t, w.node.NS), "\n")
	for _, table := range []string{"nat", "filter"} {
		if err := w.node.Do(func() error {
			out, err := exec.Command("iptables", "-w", "-t", table, "-S").Output()
			all = append(all, strings.Split(string(out), "\n")...)
			return err
		}); err != nil {
			t.Fatalf("iptables: %v", err)
		}
	}
	return all
}
