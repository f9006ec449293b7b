// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/machine"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// own lists directories to which the installation writes. So each instance has its own version of them.
var own = []string{"/etc/cni", "/etc/systemd", "/opt", "/usr/local/bin", "/var/lib/cni"}

// TestWhole runs the whole program, from the launch of its instances to the deletion of all its objects. The simulated
// instances need a kernel with ipvlan, and the programs that make build builds.
func TestWhole(t *testing.T) {
	nltest.Need(t, "ipvlan")
	w := newWhole(t)
	status, printed := w.run(t, "-yes")
	if status != 0 || !strings.Contains(printed, "all checks passed") {
		t.Errorf("%d: %s", status, printed)
	}
	for _, want := range []string{
		" differ, and 0 of these fail the test", "ok   ADD node1-pod1", "ok   pod to pod, on one ENI",
		"ok   pod to pod, on two ENIs of a node", "ok   pod to pod, on two nodes",
		"ok   pod to another node", "ok   node to a pod of another node", "ok   pod to the internet",
		"ok   pod to a service, another node",
		"ok   pod to a service, the same ENI", "ok   pod to a service, the other ENI", "ok   node to metadata",
		"ok   no pod to metadata, node1-pod1",
		"ok   CHECK, node1", "ok   DEL, node1", "ok   EC2 is as it was before, node1", "ok   node1 is as it was before",
		"ok   node2 is as it was before",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("no %q in:\n%s", want, printed)
		}
	}
	w.nothingRemains(t)
	w.policyFits(t)

	// Interrupt the run while a plugin on an instance attaches a new ENI to this instance. The conflist gives this ENI
	// the tag of the run.
	w.EC2.ResetCalls()
	w.EC2.Delay("AttachNetworkInterface", time.Hour)
	p := w.start(t, "-yes", "-only", "pods")
	p.await(t, "a plugin attaches an ENI", w.called("AttachNetworkInterface"))
	check(t, p.Process.Signal(syscall.SIGTERM))
	status, printed = p.end(t)
	if status != exitFailed || !strings.Contains(printed, "interrupted") {
		t.Errorf("%d: %s", status, printed)
	}
	w.nothingRemains(t)
}

// newWhole is like newWorld, but the instances execute the commands that they get by SSH.
func newWhole(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, account, nil, func(i *vpcsim.Instance) {
		m, err := machine.Boot(i, i.Name, nil, own...)
		if err != nil {
			t.Errorf("%s does not boot: %v", i.Name, err)
			return
		}
		l, err := daemon{Instance: i, command: m.Command}.serve()
		if err != nil {
			t.Errorf("%s: %v", i.Name, err)
			return
		}
		t.Cleanup(func() {
			l.Close()
			check(t, m.Close())
		})
	})
	w.keys()
	bin, err := filepath.Abs("../bin")
	check(t, err)
	root := filepath.Join(w.home, "image")
	check(t, os.CopyFS(filepath.Join(root, "usr/lib/systemd"), os.DirFS("../systemd")))
	check(t, os.MkdirAll(filepath.Join(root, "opt/cni/bin"), 0o755))
	check(t, os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755))
	const name = "cni-ipvlan-vpc-k8s"
	for _, p := range []string{"opt/cni/bin/" + name, "opt/cni/bin/" + name + "-grow", "opt/cni/bin/" + name + "-ipam",
		"opt/cni/bin/" + name + "-ipvlan", "opt/cni/bin/" + name + "-unnumbered-ptp",
		"opt/cni/bin/" + name + "-egress", "usr/bin/" + name + "-tool"} {
		text, err := os.ReadFile(filepath.Join(bin, filepath.Base(p)))
		check(t, err)
		check(t, os.WriteFile(filepath.Join(root, p), text, 0o755))
	}
	links, err := os.ReadFile("../systemd/" + name + "-links")
	check(t, err)
	check(t, os.WriteFile(filepath.Join(root, "usr/bin", name+"-links"), links, 0o755))
	w.args = append(w.args, "-root", root, "-ends", filepath.Join(bin, "cni-acceptance-ends"))
	return w
}
