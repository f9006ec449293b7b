// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const rebuiltConflist = `{"cniVersion": "1.1.0", "name": "rebuilt", "plugins": [
	{"type": "cni-ipvlan-vpc-k8s-ipam", "interfaceIndex": 1, "secGroupIds": [], "subnetTags": {"kubernetes_kubelet": "true"}, "reuseIPWait": 0},
	{"type": "cni-ipvlan-vpc-k8s-ipvlan"},
	{"type": "cni-ipvlan-vpc-k8s-unnumbered-ptp", "hostInterface": "eth0", "containerInterface": "eth1", "ipMasq": true}]}`

// TestRebuilt deletes the registry while pods run. Then a collection or an ADD rebuilds the registry. CHECK must
// succeed before and after this. No other pod may get an address of a running pod before the running pod's DEL.
func TestRebuilt(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	rebuilds := map[string]func(*world, *libcni.NetworkConfigList, *testing.T){
		"by a collection": func(w *world, _ *libcni.NetworkConfigList, t *testing.T) {
			w.tool(t, "registry-gc", "--free-after=1h")
		},
		"by an ADD": func(w *world, list *libcni.NetworkConfigList, t *testing.T) { w.address(t, list, "first") },
	}
	for how, rebuild := range rebuilds {
		for _, form := range forms {
			t.Run(how+", "+form.name, func(t *testing.T) {
				list, err := libcni.ConfListFromBytes(form.of([]byte(rebuiltConflist)))
				if err != nil {
					t.Fatal(err)
				}
				w := exampleVPC(t).launch(t, example{})
				a, b := w.address(t, list, "a"), w.address(t, list, "b")
				if err := os.RemoveAll(w.node.StateDir); err != nil {
					t.Fatal(err)
				}
				w.verb(t, list, "CHECK", "a") // no process has rebuilt the registry yet
				rebuild(w, list, t)
				w.verb(t, list, "CHECK", "a")
				w.verb(t, list, "CHECK", "b")
				for n := range 3 {
					if c := w.address(t, list, fmt.Sprint("further", n)); c == a || c == b {
						t.Errorf("further pod %d has the address %s of a running one", n, c)
					}
				}
				w.verb(t, list, "DEL", "a")
				if out := w.tool(t, "registry-list"); !strings.Contains(out, a+" ") || strings.Contains(out, b+" ") {
					t.Errorf("%s is to be free after its DEL, and %s not:\n%s", a, b, out)
				}
				w.verb(t, list, "CHECK", "b")
				w.without(t, "b")
				if _, err := w.call(list, "CHECK", "b"); err == nil {
					t.Error("a pod without its address passes CHECK")
				}
			})
		}
	}
}

func (w *world) address(t *testing.T, list *libcni.NetworkConfigList, pod string) string {
	t.Helper()
	if err := w.newPod(pod); err != nil {
		t.Fatal(err)
	}
	answer, err := w.call(list, "ADD", pod)
	if err != nil {
		t.Fatal(err)
	}
	return must(types100.NewResultFromResult(answer)).IPs[0].Address.IP.String()
}

func (w *world) without(t *testing.T, pod string) {
	t.Helper()
	addrs, err := w.pods[pod].Addrs("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if a.Prefix.Addr().Is4() {
			err = errors.Join(err, nl.Wiring{{NS: w.pods[pod].NS, Object: a}}.Del())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}
