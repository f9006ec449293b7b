// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpc

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// metaConflist is our chain with those of the reference plugins behind it that can be.
// Two cannot: bandwidth wants the pod's interface to be one of a veth pair, and sbr takes
// the default route away from ours.
//
// portmap needs masqAll, which only its iptables backend has: what comes to a host's port
// goes on to the pod by the node, with the caller's address, and the pod would answer a
// caller in the VPC by its ENI, where nobody has rewritten anything. And the host's port
// has to be one of nodePorts, or the pod's rule of the node sends the answer back into the
// pod.
const metaConflist = `{"cniVersion": "1.1.0", "name": "meta", "plugins": [
	{"type": "cni-ipvlan-vpc-k8s-ipam", "interfaceIndex": 1, "secGroupIds": [], "subnetTags": {"kubernetes_kubelet": "true"}, "reuseIPWait": 0},
	{"type": "cni-ipvlan-vpc-k8s-ipvlan"},
	{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true},
	{"type": "tuning", "sysctl": {"net.ipv4.tcp_keepalive_time": "600"}, "mtu": 1400},
	{"type": "portmap", "backend": "iptables", "masqAll": true, "capabilities": {"portMappings": true}},
	{"type": "firewall", "backend": "iptables"}]}`

// TestMetaPlugins is the life of a pod, which ends with DEL, and of another, which is
// forgotten.
func TestMetaPlugins(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables", "iptables")
	list, err := libcni.ConfListFromBytes([]byte(metaConflist))
	if err != nil {
		t.Fatal(err)
	}
	w := testWorld(t)
	const port, hostPort = 8080, 30080
	w.capabilities = map[string]any{"portMappings": []map[string]any{{"hostPort": hostPort, "containerPort": port, "protocol": "tcp"}}}
	do := func(verb, pod string) {
		t.Helper()
		if _, err := w.call(list, verb, pod); err != nil {
			t.Fatalf("%s %s: %v", verb, pod, err)
		}
	}
	do("STATUS", "pod")
	add := func() {
		t.Helper()
		if err := w.newPod("pod"); err != nil {
			t.Fatal(err)
		}
		if err := w.pods["pod"].Answer(port); err != nil {
			t.Fatal(err)
		}
		result, err := w.call(list, "ADD", "pod")
		if err != nil {
			t.Fatal(err)
		}
		w.works(t, must(types100.NewResultFromResult(result)), hostPort)
	}
	add()
	do("CHECK", "pod")
	do("GC", "pod")
	do("CHECK", "pod")
	do("DEL", "pod")
	do("DEL", "pod")
	after := w.rules(t)
	if err := w.removePod("pod"); err != nil {
		t.Fatal(err)
	}
	add()
	do("GC", "another")
	if d := cmp.Diff(after, w.rules(t)); d != "" {
		t.Errorf("what is on the node when the second pod has gone; -want +got\n%s", d)
	}
}

// works wants of a pod what each plugin is for.
func (w *world) works(t *testing.T, result *types100.Result, hostPort uint16) {
	t.Helper()
	addr, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
	if err := w.host.Ping(addr.Unmap()); err != nil {
		t.Error(err)
	}
	to := netip.AddrPortFrom(w.node.Addr(), hostPort)
	if seen, err := w.host.Call("tcp", to); err != nil || seen.Addr() != w.node.Addr() {
		t.Errorf("portmap: who calls %s is seen as %v, want the node, %s; %v", to, seen, w.node.Addr(), err)
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

// rules are the node's links, routes and rules, and those of iptables.
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
