// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

// besides has networks of the CNI project's plugins that give a pod a further interface. The key is the plugin that
// judges.
var besides = map[string]string{
	judges + "/bridge":  `{"type": "bridge", "bridge": "second0", "isGateway": true, %s}`,
	judges + "/macvlan": `{"type": "macvlan", "master": "second1", %s}`,
	peers + "/ptp":      `{"type": "ptp", %s}`,
	judges + "/sbr":     `{"type": "bridge", "bridge": "second0", "isGateway": true, %s}, {"type": "sbr"}`,
	judges + "/vrf":     `{"type": "macvlan", "master": "second1", %s}, {"type": "vrf", "vrfname": "second2"}`,
}

// TestJudgeBeside: a pod has a network of ours, and a network of upstream (the CNI project's plugins). In one run, each
// verb calls our network first. In a second run, each verb calls upstream's network first. libcni and upstream's CHECK
// judge. The packets of both networks must arrive, and DEL must free both addresses.
func TestJudgeBeside(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	for program, conf := range besides {
		for _, path := range []string{"ipvlan", "veth"} {
			t.Run(filepath.Base(program)+"/"+path, func(t *testing.T) {
				pkg, version := judge.Release(t, program)
				judge.Attr(t, "`"+pkg+"` in a pod's second network", version, "`dataPath` `"+path+"`")
				for _, first := range []string{"ours", "theirs"} {
					t.Run(first+" first", func(t *testing.T) { testBeside(t, conf, path, first == "ours") })
				}
			})
		}
	}
}

func testBeside(t *testing.T, conf, path string, oursFirst bool) {
	w := exampleVPC(t).launch(t, example{})
	nltest.Shell(t, w.node.NS, "ip link add second1 type dummy; ip link set second1 up")
	ours, err := mode{change: func(ipam, _ map[string]any) { ipam["dataPath"] = path }, Options: v4}.conflist()
	if err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	ipam := fmt.Sprintf(`"ipam": {"type": "host-local", "subnet": "192.168.77.0/24", "dataDir": %q}`, data)
	// After sbr or vrf, upstream's own CHECK finds no gateway: findings/check-after-sbr.sh.
	theirs := fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "second", "disableCheck": %v, "plugins": [%s]}`,
		strings.Contains(conf, "}, {"), fmt.Sprintf(conf, ipam))
	networks := []beside{{w, must(libcni.ConfListFromBytes(ours)), "eth0"},
		{w, must(libcni.ConfListFromBytes(theirs)), "net1"}}
	if !oursFirst {
		slices.Reverse(networks)
	}
	w.pod(t, "sibling")
	for _, pod := range []string{"pod", "sibling"} {
		for _, n := range networks {
			n.do(t, "ADD", pod)
		}
	}
	if err := w.host.Ping(w.addressOf(t, "eth0")); err != nil {
		t.Error(err)
	}
	for i := range networks {
		for _, n := range networks[i:] {
			n.do(t, "CHECK", "pod")
			// Only sockets that are bound to the link of a VRF use the routes of the VRF.
			nltest.Shell(t, w.pods["pod"].NS, fmt.Sprintf("ping -c 1 -W 30 -I %s %s", n.link, n.addr(t, "sibling")))
		}
		networks[i].do(t, "DEL", "pod")
		networks[i].do(t, "CHECK", "sibling")
	}
	for _, n := range networks {
		n.do(t, "DEL", "sibling")
	}
	if left := must(filepath.Glob(filepath.Join(data, "second", "192.168.*"))); len(left) != 0 {
		t.Errorf("host-local still has %v", left)
	}
	if out := w.tool(t, "status", "--output=json"); strings.Contains(out, `"state": "bound"`) {
		t.Errorf("leases are left:\n%s", out)
	}
}

type beside struct {
	*world
	list *libcni.NetworkConfigList
	link string
}

func (b beside) do(t *testing.T, verb, pod string) {
	t.Helper()
	b.ifName = b.link
	if _, err := b.call(b.list, verb, pod); err != nil {
		t.Fatalf("%s: %s %s: %v", b.list.Name, verb, pod, err)
	}
}

func (b beside) addr(t *testing.T, pod string) netip.Addr {
	t.Helper()
	addrs, err := b.pods[pod].Addrs(b.link)
	i := slices.IndexFunc(addrs, func(a nl.Addr) bool { return a.Prefix.Addr().Is4() })
	if i < 0 {
		t.Fatalf("%s of %s has %v, %v", b.link, pod, addrs, err)
	}
	return addrs[i].Prefix.Addr()
}
