// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cluster_test

import (
	"cmp"
	"fmt"
	"net/http"
	"path"
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

// allInUserNamespaces gives each new pod its own user namespace, until the end of the test. It leaves out pods that
// share a namespace of the node, for which Kubernetes does not allow this.
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

// attacks has shell commands, which must fail in a pod. $neighbour is the address of another pod of the same ENI. $node
// is the address of the node, and $gateway the address of the subnet's router. $host is a server in the peered VPC.
// TestAdversaryWays tries packets that no program of a shell can send.
var attacks = []struct{ name, command string }{
	{"change the mode of all links of the ENI", "ip link set eth0 type ipvlan mode l3"},
	{"separate the links of the ENI", "ip link set eth0 type ipvlan private"},
	{"have a switch forward between them", "ip link set eth0 type ipvlan vepa"},
	{"make another link of the ENI", "ip link add link eth0 name more type ipvlan mode l2"},
	{"make one that passes the node's netfilter", "ip link add link eth0 name more type ipvlan mode l3s"},
	{"send by another MAC address", "ip link set eth0 address 02:00:00:00:00:99"},
	{"put its link into a bridge", "ip link add name switch type bridge && ip link set eth0 master switch"},
	{"take the address of a neighbour", "ip address add $neighbour/32 dev eth0"},
	{"call as a neighbour", "ip address add $neighbour/32 dev lo && $curl --interface $neighbour $host"},
	{"call as its node", "ip address add $node/32 dev lo && $curl --interface $node $host"},
	{"call a neighbour as its node", "ip address add $node/32 dev lo && $curl --interface $node $neighbour:8080"},
	{"call as an address of no host", "ip address add $free/32 dev lo && $curl --interface $free $host"},
	{"call a neighbour as the gateway",
		"ip address add $gateway/32 dev lo && $curl --interface $gateway $neighbour:8080"},
	{"call its node as a neighbour",
		"ip address add $neighbour/32 dev lo && $curl -k --interface $neighbour https://$node:10250/healthz"},
	{"see links of its node", "ip link show dev ens5"},
	{"see them in sysfs", "mount -t sysfs sysfs /mnt && ls -d /mnt/class/net/ens5"},
	{"see rules of its node", "ip rule | grep cni || ip rule | grep -v -E '^(0|32766|32767):'"},
	{"see routes of its node", "ip route show table all | grep -w ens5"},
	{"see nftables of its node", "nft list tables | grep cni-ipvlan-vpc-k8s"},
	{"delete nftables of its node", "nft delete table inet cni-ipvlan-vpc-k8s"},
	{"add a chain to a link of its node", "nft add table netdev x && nft add chain netdev x y " +
		"'{ type filter hook ingress device ens5 priority 0; }'"},
	{"see pins of BPF", "mount -t bpf bpf /mnt && ls /mnt | grep ."},
	{"use a pin of BPF", "tc filter add dev eth0 ingress bpf direct-action object-pinned " +
		"/sys/fs/bpf/cni-ipvlan-vpc-k8s/loop"},
	{"change settings of the node", "echo 1 > /proc/sys/net/ipv4/ip_forward"},
	{"change settings of the node by a mount of its own", "mount -t proc proc /mnt && " +
		"echo 1 > /mnt/sys/kernel/core_uses_pid"},
	{"enter a namespace of its node", "nsenter --net=/proc/1/root/run/netns/$netns true"},
	{"enter that of a process of its node", "nsenter --target 2 --net ip link show dev ens5"},
	{"read the registry", "ls /var/run/cni-ipvlan-vpc-k8s || ls /run/cni-ipvlan-vpc-k8s || ls /var/lib/cni"},
	{"read the configuration of the plugins", "ls /etc/cni/net.d"},
	{"call the container runtime", "$curl --unix-socket /run/containerd/containerd.sock http://containerd"},
}

// attack makes a pod with its own user namespace try all attacks, as root with all capabilities. After each attack, the
// neighbour must still get an answer from the attacker.
func (w *world) attack(t *testing.T) {
	t.Helper()
	spec := server()
	spec["containers"].([]object)[0]["securityContext"] = object{"capabilities": object{"add": []string{"ALL"}}}
	w.apply(t, podOn("attacker", "node1", spec), podOn("neighbour", "node1", server()))
	attacker, neighbour := w.ready(t, "attacker", 1)[0], w.ready(t, "neighbour", 1)[0]
	n := w.node("node1")
	state, err := leases(n)
	check(t, err)
	mine, _ := state.Leases.At(attacker.addr)
	its, ok := state.Leases.At(neighbour.addr)
	if !ok || mine.ENI != its.ENI {
		t.Fatalf("the pods are on the ENIs %q and %q, want one", mine.ENI, its.ENI)
	}
	host := w.listen(t, func(http.ResponseWriter, *http.Request) {})
	variables := fmt.Sprintf("neighbour=%s node=%s host=%s gateway=%s free=100.64.15.77 netns=%s "+
		"curl='curl -s -f -m 3'; ", neighbour.addr, n.Addr(), host, "100.64.0.1", path.Base(its.NetNS))
	succeeded := 0
	for _, a := range attacks {
		if w.succeeds(t, attacker, variables+a.command) {
			succeeded++
			t.Errorf("a pod with a user namespace can %s", a.name)
		}
		w.sees(t, neighbour, "http", serverOf(attacker), neighbour.addr)
	}
	drops, err := w.Fabric.Drops()
	check(t, err)
	w.spoofed = drops.Spoofed
	w.figures = append(w.figures, fmt.Sprintf("a pod in a user namespace of its own, as root with all capabilities: "+
		"%d of %d attacks have succeeded", succeeded, len(attacks)))
}

// succeeds tries an attack, and reports whether the command has succeeded. Then it undoes changes of the pod.
func (w *world) succeeds(t *testing.T, p pod, command string) bool {
	t.Helper()
	out, failure := w.sh(p, command+" 2>&1")
	t.Log(command, out, failure)
	_, err := w.sh(p, "ip address flush dev lo scope global; ip link delete switch 2>/dev/null; "+
		"umount /mnt 2>/dev/null; nft flush ruleset; true")
	check(t, err)
	return failure == nil
}
