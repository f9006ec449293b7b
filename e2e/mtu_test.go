// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// dualStack makes a node for pods with both families. The links of the pods have this MTU; 0: the MTU of their ENI.
func dualStack(t *testing.T, mtu int) (*world, *libcni.NetworkConfigList, string) {
	t.Helper()
	nltest.Need(t, "root", "ipvlan", "nftables")
	text, err := os.ReadFile("conflist-examples/dual-stack.conflist")
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"ipFamilies"`),
		fmt.Appendf(nil, `"reuseIPWait": 0, "mtu": %d, "ipFamilies"`, mtu), 1)
	list, err := libcni.ConfListFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	file := t.TempDir() + "/10.conflist"
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return exampleVPC(t).launch(t, example{ipv6: 1}), list, file
}

func (w *world) mtu(t *testing.T, e ec2sim.ENI, mtu int) {
	t.Helper()
	l, err := w.node.FindMAC(e.MAC)
	if err == nil {
		err = w.node.Do(func() error { return exec.Command("ip", "link", "set", l.Name, "mtu", fmt.Sprint(mtu)).Run() })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hasMTU checks the MTU of a link, and the link's MTU for IPv6.
func hasMTU(t *testing.T, what string, l nl.Link, err error, mtu int) {
	t.Helper()
	if err != nil || l.MTU != mtu || l.MTU6 != mtu {
		t.Errorf("%s: MTU %d, of IPv6 %d, %v; want %d", what, l.MTU, l.MTU6, err, mtu)
	}
}

// TestMTUOfOthers: the MTU of the boot ENI's link changes. If pods use another ENI, neither an ADD nor doctor may
// change the MTU of that ENI's link.
func TestMTUOfOthers(t *testing.T) {
	w, list, file := dualStack(t, 1400)
	w.pod(t, "second")
	_, enis := w.added(t, list, "pod")
	same := func(what string, eni int) {
		t.Helper()
		l, err := w.node.FindMAC(enis[0].MAC)
		hasMTU(t, what+": the ENI", l, err, eni)
		for _, pod := range []string{"pod", "second"} {
			if l, err = w.pods[pod].LinkByName("eth0"); pod == "pod" || err == nil {
				hasMTU(t, what+": "+pod, l, err, 1400)
				w.verb(t, list, "CHECK", pod)
			}
		}
	}
	same("before", 9001)
	w.mtu(t, w.node.ENIs()[0], 1500)
	w.added(t, list, "second")
	same("after an ADD", 9001)

	w.verb(t, list, "DEL", "pod")
	w.verb(t, list, "DEL", "second")
	w.added(t, list, "pod")
	same("after the last pod of the ENI has ended", 1500)
	w.mtu(t, w.node.ENIs()[0], 9001)
	out := w.tool(t, "doctor", "--check=links", "--fix", "--config", file)
	if want := "the link's MTU is 1500, and the MTU of the boot ENI is 9001, so pods on this ENI send smaller " +
		"packets than other pods\n    drain the node. "; !strings.Contains(out, want) {
		t.Errorf("doctor --fix:\n%s", out)
	}
	same("after doctor --fix", 1500)

	w.mtu(t, enis[0], 1300)
	out, _ = w.tries("doctor", "--check=links", "--config", file)
	if want := "the link's MTU is 1300, but the conflist has 1400"; !strings.Contains(out, want) {
		t.Errorf("doctor:\n%s", out)
	}
	_, err := w.call(list, "ADD", "second")
	if err == nil || !strings.Contains(err.Error(), "mtu: 1400: the MTU of eth1 is only 1300") {
		t.Errorf("ADD on an ENI with a smaller MTU: %v", err)
	}
}

// TestMTU6OfSlaves: a pod has an address of an ENI, and another program lowers the MTU of the ENI's link. CHECK and
// doctor must report that the pod's link still has the old MTU for IPv6. doctor --fix must correct this MTU.
func TestMTU6OfSlaves(t *testing.T) {
	w, list, file := dualStack(t, 0)
	_, enis := w.added(t, list, "pod")
	w.verb(t, list, "CHECK", "pod")
	w.mtu(t, enis[0], 1500)
	const want = "IPv6 on eth0 sends packets of up to 9001 bytes, but the link takes at most 1500 bytes"
	if _, err := w.call(list, "CHECK", "pod"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("CHECK: %v", err)
	}
	if out, err := w.tries("doctor", "--check=links", "--config", file); err == nil || !strings.Contains(out, want) {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	if out := w.tool(t, "doctor", "--check=links", "--fix", "--config", file); !strings.Contains(out,
		"fixed: sysctl -w net.ipv6.conf.eth0.mtu=") {
		t.Errorf("doctor --fix:\n%s", out)
	}
	l, err := w.pods["pod"].LinkByName("eth0")
	hasMTU(t, "after doctor --fix", l, err, 1500)
	w.verb(t, list, "CHECK", "pod")
}
