// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
	"slices"
	"testing"
)

// userNamespaces runs the conformance tests of the network while each pod has a user namespace of its own. It also
// attacks the node and a neighbour from such a pod.
func (w *world) userNamespaces(t *testing.T) {
	w.allInUserNamespaces(t)
	w.attack(t)
	ran := w.e2e(t, "--ginkgo.focus="+cmp.Or(*specs, networkSpecs)+conformance)
	w.figures = append(w.figures, fmt.Sprintf("pods in user namespaces: %d of %d conformance specs passed",
		len(ran["passed"]), len(ran["passed"])+len(ran["failed"])))
}

// allInUserNamespaces gives each new pod its own user namespace, until the end of the test. It leaves out each pod that
// shares a namespace of the node, because Kubernetes allows no user namespace for such a pod.
func (w *world) allInUserNamespaces(t *testing.T) {
	t.Helper()
	name := object{"name": "user-namespaces"}
	w.apply(t,
		object{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicy", "metadata": name,
			"spec": object{
				"failurePolicy": "Fail", "reinvocationPolicy": "Never",
				"matchConstraints": object{"resourceRules": []object{{"apiGroups": []string{""},
					"apiVersions": []string{"v1"}, "operations": []string{"CREATE"}, "resources": []string{"pods"}}}},
				"matchConditions": []object{{"name": "shares-nothing-with-the-node", "expression": "!(" +
					"object.spec.?hostNetwork.orValue(false) || object.spec.?hostPID.orValue(false) || " +
					"object.spec.?hostIPC.orValue(false))"}},
				"mutations": []object{{"patchType": "ApplyConfiguration", "applyConfiguration": object{
					"expression": "Object{spec: Object.spec{hostUsers: false}}"}}},
			}},
		object{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingAdmissionPolicyBinding",
			"metadata": name, "spec": object{"policyName": "user-namespaces"}})
	await(t, func() error {
		out, err := w.Kubectl(t.Context(), "run", "probe", "--dry-run=server", "--image=none", "-o",
			"jsonpath={.spec.hostUsers}")
		if err == nil && out != "false" {
			err = fmt.Errorf("a new pod shares the node's users")
		}
		return err
	})
}

// A deed has the name of an action that root in a pod must not be able to do, and a shell command that tries the
// action. A command can use these variables:
//
//   - $neighbour is the address of another pod of the same ENI, and $netns is the name of this pod's network namespace;
//   - $link is the name of the node's link to this neighbour;
//   - $node is the address of the node, and $gateway is the address of the subnet's router;
//   - $host is the address of a server in the peered VPC;
//   - $pin is a file of the node, by which the kernel keeps a BPF program;
//   - $table is a table of nftables of the node.
type deed struct{ name, command string }

// changes has deeds that would change links or nftables. In package e2e, TestAdversaryWays sends packets that no shell
// command can send.
var changes = []deed{
	{"change the mode of all links of the ENI", "ip link set eth0 type ipvlan mode l3"},
	{"separate the links of the ENI", "ip link set eth0 type ipvlan private"},
	{"have a switch forward between them", "ip link set eth0 type ipvlan vepa"},
	{"make another link of the ENI", "ip link add link eth0 name more type ipvlan mode l2"},
	{"make one that passes the node's netfilter", "ip link add link eth0 name more type ipvlan mode l3s"},
	{"send by another MAC address", "ip link set eth0 address 02:00:00:00:00:99"},
	{"put its link into a bridge", "ip link add name switch type bridge && ip link set eth0 master switch"},
	{"take the address of a neighbour", "ip address add $neighbour/32 dev eth0"},
	{"delete nftables of its node", "nft delete table $table"},
	{"use a pin of BPF", "tc qdisc add dev lo clsact; " +
		"tc filter add dev lo ingress bpf direct-action object-pinned $pin"},
}

// ofNode has deeds that succeed on the node, so they fail in the pod only because the pod is separate from the node.
var ofNode = []deed{
	{"see links of its node", "ip link show dev $link"},
	{"see them in sysfs", "mount -t sysfs sysfs /mnt && ls -d /mnt/class/net/$link"},
	{"see rules of its node", "ip rule | grep -v -E '^(0|32766|32767):'"},
	{"see routes of its node", "ip route show table all | grep -w $link"},
	{"change a link of its node", "tc qdisc replace dev $link root pfifo"},
	{"see nftables of its node", "nft list table $table"},
	{"see pins of BPF", "ls $pin"},
	{"change settings of the node", "f=/proc/sys/kernel/core_uses_pid; v=$(cat $f) && echo $v >$f"},
	{"change settings of the node by a mount of its own", "mount -t proc proc /mnt && " +
		"f=/mnt/sys/kernel/core_uses_pid && v=$(cat $f) && echo $v >$f"},
	{"enter a namespace of its node", "nsenter --net=/proc/1/root/run/netns/$netns true"},
	{"enter that of a process of its node", "nsenter --target 1 --net ip link show dev $link"},
	{"read the registry", "ls /var/run/cni-ipvlan-vpc-k8s || ls /run/cni-ipvlan-vpc-k8s || ls /var/lib/cni"},
	{"read the configuration of the plugins", "ls /etc/cni/net.d"},
	{"call the container runtime", "nc -z -U /run/containerd/containerd.sock"},
}

// forgeries are calls with the source address in the field "from". With the pod's own source address, such a call gets
// an answer.
var forgeries = []struct{ name, from, to string }{
	{"call as a neighbour", "$neighbour", "$host"},
	{"call as its node", "$node", "$host"},
	{"call a neighbour as its node", "$node", "$neighbour:8080"},
	{"call as an address of no host", "100.64.15.77", "$host"},
	{"call a neighbour as the gateway", "$gateway", "$neighbour:8080"},
	{"call its node as a neighbour", "$neighbour", "$node:10256/healthz"}, // kube-proxy
}

// attack makes a pod with its own user namespace try all deeds, as root with all capabilities. After each deed, the
// neighbour must still get an answer from the attacker.
func (w *world) attack(t *testing.T) {
	t.Helper()
	spec := server()
	spec["containers"].([]object)[0]["securityContext"] = object{"capabilities": object{"add": []string{"ALL"}}}
	w.apply(t, podOn("attacker", "node1", spec), podOn("neighbour", "node1", server()))
	attacker, neighbour := w.ready(t, "attacker", 1)[0], w.ready(t, "neighbour", 1)[0]
	variables := w.variables(t, attacker, neighbour)
	deeds := slices.Concat(changes, ofNode)
	for _, d := range ofNode {
		script := variables + "trap 'umount /mnt' EXIT; " + d.command
		if _, err := w.node("node1").Run(t.Context(), "sh", "-c", script); err != nil {
			t.Errorf("the node itself cannot %s, so the attack proves nothing: %v", d.name, err)
		}
	}
	for _, f := range forgeries {
		const call = "curl -s -f -m 3"
		if !w.succeeds(t, attacker, variables+call+" "+f.to) {
			t.Errorf("a pod cannot call %s at all, so the attack to %s proves nothing", f.to, f.name)
		}
		command := fmt.Sprintf("ip address add %[1]s/32 dev lo && %[2]s --interface %[1]s %[3]s", f.from, call, f.to)
		deeds = append(deeds, deed{f.name, command})
	}
	succeeded := 0
	for _, d := range deeds {
		if w.succeeds(t, attacker, variables+d.command) {
			succeeded++
			t.Errorf("a pod with a user namespace can %s", d.name)
		}
		w.sees(t, neighbour, "http", serverOf(attacker), neighbour.addr)
	}
	drops, err := w.Fabric.Drops()
	check(t, err)
	w.spoofed = drops.Spoofed
	w.figures = append(w.figures, fmt.Sprintf("a pod in a user namespace of its own, as root with all capabilities: "+
		"%d of %d attacks have succeeded", succeeded, len(deeds)))
}

// variables returns shell commands that set the variables of the deeds. The two pods must be on one ENI.
func (w *world) variables(t *testing.T, attacker, neighbour pod) string {
	t.Helper()
	n := w.node("node1")
	state, err := leases(n)
	check(t, err)
	mine, _ := state.Leases.At(attacker.addr)
	its, ok := state.Leases.At(neighbour.addr)
	if !ok || mine.ENI != its.ENI {
		t.Fatalf("the pods are on the ENIs %q and %q, want one", mine.ENI, its.ENI)
	}
	names, err := n.Run(t.Context(), "sh", "-ec", fmt.Sprintf(`
		ip -o route show table all %s | sed -n 's/.* dev \([^ ]*\).*/link=\1/p' | sort -u
		nft list tables | sed -n 's/^table \(.* cni_ipvlan_vpc_k8s.*\)/table="\1"/p' | head -n 1
		ls -d /sys/fs/bpf/cni_ipvlan_vpc_k8s* | sed -n '1s/^/pin=/p'`, neighbour.addr))
	check(t, err)
	host := w.listen(t, func(http.ResponseWriter, *http.Request) {})
	return fmt.Sprintf("%sneighbour=%s; node=%s; host=%s; gateway=100.64.0.1; netns=%s; ", names, neighbour.addr,
		n.Addr(), host, path.Base(its.NetNS))
}

// succeeds runs a command in a pod, and reports whether it has succeeded. Then it undoes what the command may have
// changed in the pod.
func (w *world) succeeds(t *testing.T, p pod, command string) bool {
	t.Helper()
	out, failure := w.sh(p, command+" 2>&1")
	t.Log(command, out, failure)
	_, err := w.sh(p, "ip address flush dev lo scope global; ip link delete switch 2>/dev/null; "+
		"umount /mnt 2>/dev/null; tc qdisc del dev lo clsact 2>/dev/null; nft flush ruleset; true")
	check(t, err)
	return failure == nil
}
