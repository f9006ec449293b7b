// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

// TestKillEverywhere kills ADD and DEL after each system call. Then a GC, or a DEL with or without the namespace,
// leaves nothing of the pod on the node or in the registry. The next ADD of the attachment succeeds.
//
// Before each kill of an ADD, the test runs another ADD in which the same system call fails. This ADD must undo its
// changes.
func TestKillEverywhere(t *testing.T) { newNode(t).everywhere("") }

// TestKillSeveral is TestKillEverywhere with an ADD that makes three NICs, but no system call fails. If an unlock
// failed, the registry would stay locked until the process ends. This ADD locks the registry again, and would wait for
// itself.
func TestKillSeveral(t *testing.T) {
	n := newNode(t)
	n.addresses(40)
	n.everywhere(asking)
}

// TestKillEgress is TestKillEverywhere with a client and a router of an egress.
func TestKillEgress(t *testing.T) {
	nltest.Need(t, "fou")
	for _, role := range []string{"namespaces", "routers"} {
		t.Run(role, func(t *testing.T) { newNode(t).everywhere(egressing(role)) })
	}
}

// TestKillRouted is TestKillEverywhere with routed pods, whose pairs have their usual names, or names for engines of
// NetworkPolicy.
func TestKillRouted(t *testing.T) {
	for name, keys := range map[string]string{"": byVeth, "vethPrefix": byName} {
		t.Run(name, func(t *testing.T) { newNodeWithout(t).everywhere(keys) })
	}
}

// egressing returns keys with an egress in which the pods have this role.
func egressing(role string) string {
	return `, "egress": {"e": {"gateways": ["172.20.0.77"], "destinations": ["203.0.113.0/24", "10.8.0.0/13"], ` +
		`"except": ["10.9.0.0/16"], "selectable": ["none"], "` + role + `": ["default"]}}`
}

// everywhere runs TestKillEverywhere with additional keys of the configuration.
func (n node) everywhere(keys string) {
	t := n.T
	first := victim{node: n, keys: keys}
	first.whole()
	after := nltest.Dump(t, n.ns)
	for _, verb := range []string{"ADD", "DEL"} {
		points := trace.Everywhere(t, verb, func(t *testing.T, tr *trace.Trace) {
			v := victim{node: n.within(t), keys: keys, verb: verb, after: after}
			if verb == "ADD" && (keys == "" || keys == byVeth || keys == byName) {
				v.fail(tr.Again(syscall.ENOMEM))
			}
			v.play(tr)
			v.whole()
		})
		t.Logf("%s was killed at %d points", verb, points)
	}
}

// A victim is a command that the test kills.
type victim struct {
	node
	keys  string
	verb  string
	after string // a dump of the node after all pods have ended
}

func (v victim) pod() (*nl.NS, *plugin.Request[Config]) {
	ns, path := nltest.NS(v, "pod")
	return ns, v.request(path, v.keys)
}

// fail runs an ADD in which one system call fails.
func (v victim) fail(tr *trace.Trace) {
	v.Helper()
	pod, r := v.pod()
	bare := nltest.Dump(v, pod)
	if v.run(r, tr).ExitStatus() != 1 {
		v.must(v.DEL(r)) // ADD has succeeded without this call, or the Go runtime has ended the process
	}
	v.same("ADD failed and left something in the pod", bare, nltest.Dump(v, pod))
	v.clean()
	nltest.Remove(v, r.NetNS)
}

// play kills the command. Then it ends the pod by a DEL, by a DEL without the namespace, or by a GC. The number of the
// system call decides between these three.
func (v victim) play(tr *trace.Trace) {
	v.Helper()
	pod, r := v.pod()
	bare := nltest.Dump(v, pod)
	if v.verb == "DEL" {
		_, err := v.ADD(r)
		v.must(err)
	}
	if status := v.run(r, tr); status.Exited() && status.ExitStatus() != 0 {
		v.Fatalf("status %d", status.ExitStatus())
	}
	if tr.Kill%3 == 0 {
		v.must(v.DEL(r))
		v.same("DEL left something in the pod", bare, nltest.Dump(v, pod))
		v.must(v.DEL(r))
	}
	nltest.Remove(v, r.NetNS)
	switch tr.Kill % 3 {
	case 1:
		r.NetNS = ""
		v.must(v.DEL(r))
	case 2:
		v.must(v.GC(r))
		v.must(v.DEL(r)) // GC does not delete waiters
	}
	v.clean()
}

// clean checks that nothing of the pod is on the node.
func (v victim) clean() {
	v.Helper()
	keeps := strings.Split(v.after, "\n")
	for line := range strings.SplitSeq(nltest.Dump(v, v.ns), "\n") {
		if !slices.Contains(keeps, line) {
			v.Errorf("left: %s", line)
		}
	}
	v.vacant()
}

// run runs the command as a process.
func (v victim) run(r *plugin.Request[Config], tr *trace.Trace) (status syscall.WaitStatus) {
	v.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+v.verb, "CNI_CONTAINERID="+r.ContainerID, "CNI_IFNAME="+r.IfName,
		"CNI_NETNS="+r.NetNS, "CNI_PATH=/opt/cni/bin",
		"CNI_ARGS=K8S_POD_NAMESPACE="+r.Pod.Namespace+";K8S_POD_NAME="+r.Pod.Name)
	cmd.Stdin = strings.NewReader(config(v.keys))
	v.must(v.ns.Do(func() (err error) { status, err = tr.Run(cmd); return err }))
	return status
}

// whole adds, checks and deletes a pod.
func (v victim) whole() {
	v.Helper()
	_, r := v.pod()
	result, err := v.ADD(r)
	v.must(err)
	v.must(v.CHECK(r, result))
	v.must(v.DEL(r))
	v.vacant()
	nltest.Remove(v, r.NetNS)
}
