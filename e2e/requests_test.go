// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/nic"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// documentedENI is the ID of the ENI in the examples of docs/nics.md.
const documentedENI = "eni-0a281565676f746d4"

// documentedPods returns the requests of the pods in docs/nics.md. The first pod asks for nothing.
func documentedPods(t *testing.T) (asks []string) {
	t.Helper()
	text, err := os.ReadFile("docs/nics.md")
	if err != nil {
		t.Fatal(err)
	}
	list := regexp.MustCompile(`(?s)` + nic.Annotation + `:.*?(\[.*\])`)
	for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
		yaml, _, _ := strings.Cut(block, "```")
		yaml, _, _ = strings.Cut(yaml, "\nspec:")
		ask := ""
		if m := list.FindStringSubmatch(yaml); m != nil {
			ask = m[1]
		}
		asks = append(asks, ask)
	}
	return asks
}

// A wanted describes the ENI that an interface of a pod must use.
type wanted struct {
	subnet, ip string
	groups     []string
	given      bool // an operator has created the ENI
	exclusive  bool // the ENI's own link is in the pod
}

// TestRequests runs the pods of docs/nics.md, each on its own node. Each interface of a pod must use the requested ENI,
// must answer from its own address, and must be gone after DEL.
func TestRequests(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	own := []string{"sg-1234", "sg-5678"}
	wants := [][]wanted{
		{{subnet: "subnet-pods", groups: own}},
		{{subnet: "subnet-1", groups: own}},
		{{subnet: "subnet-1", ip: "192.168.0.12", groups: own}},
		{{subnet: "subnet-1", groups: []string{"sg-9"}, given: true}},
		{{subnet: "subnet-1", ip: "192.168.0.13", groups: []string{"sg-1"}},
			{subnet: "subnet-1", groups: []string{"sg-9"}, given: true}},
		{{subnet: "subnet-1", groups: []string{"sg-9"}, given: true, exclusive: true}},
	}
	asks := documentedPods(t)
	if len(asks) != len(wants) {
		t.Fatalf("the documentation has %d pods, want %d: %q", len(asks), len(wants), asks)
	}
	v := exampleVPC(t)
	list, err := libcni.ConfListFromFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	for i, ask := range asks {
		t.Run(fmt.Sprint("pod", i+1), func(t *testing.T) {
			w := v.launch(t, example{kubernetes: "vm-1"})
			given := w.give(t)
			ask = strings.ReplaceAll(ask, documentedENI, given)
			// Each test needs another address, because the address of an earlier test's pod stays on its ENI.
			ask = strings.ReplaceAll(ask, "192.168.0.12", wants[i][0].ip)
			if ask != "" {
				w.asks(ask)
			}
			w.tryRequest(t, list, given, wants[i])
		})
	}
}

func (w *world) asks(ask string) {
	w.capabilities = map[string]any{"io.kubernetes.cri.pod-annotations": map[string]string{nic.Annotation: ask}}
}

func (w *world) give(t *testing.T) string {
	t.Helper()
	e := w.given(t, "subnet-1", map[string]string{"SecurityGroupId.1": "sg-9"})
	w.fabric.EC2.ResetCalls()
	return e.ID
}

// tryRequest adds, checks and deletes a pod with these interfaces.
func (w *world) tryRequest(t *testing.T, list *libcni.NetworkConfigList, given string, wants []wanted) {
	t.Helper()
	for range 2 { // a repeated ADD has the same result
		added, err := w.call(list, "ADD", "pod")
		if err != nil {
			t.Fatal(err)
		}
		result, err := types100.NewResultFromResult(added)
		if err != nil {
			t.Fatal(err)
		}
		if len(result.IPs) != len(wants) {
			t.Fatalf("the pod has the addresses %v, want %d", result.IPs, len(wants))
		}
		for i, want := range wants {
			w.tryInterface(t, result, i, given, want)
		}
	}
	if _, err := w.call(list, "CHECK", "pod"); err != nil {
		t.Error(err)
	}
	if _, err := w.call(list, "DEL", "pod"); err != nil {
		t.Error(err)
	}
	for _, link := range []string{"eth0", "eth1", "eth2", "data"} {
		if _, err := w.pods["pod"].LinkByName(link); err == nil {
			t.Errorf("the pod still has %s", link)
		}
	}
}

func (w *world) tryInterface(t *testing.T, result *types100.Result, i int, given string, want wanted) {
	t.Helper()
	ip, _ := netip.AddrFromSlice(result.IPs[i].Address.IP)
	ip = ip.Unmap()
	enis := w.node.ENIs()
	at := slices.IndexFunc(enis, func(e ec2sim.ENI) bool { return slices.Contains(e.Addrs, ip) })
	if at < 0 {
		t.Fatalf("%s is on no ENI of the node", ip)
	}
	e, link := enis[at], result.Interfaces[*result.IPs[i].Interface]
	if e.Subnet != want.subnet || !slices.Equal(e.SecurityGroups, want.groups) || want.ip != "" &&
		ip.String() != want.ip || want.given != (e.ID == given) || link.Mac != e.MAC {
		t.Errorf("interface %d is %+v with %s, on %+v: want %+v", i+1, link, ip, e, want)
	}
	if onNode := w.onNode(t, e.MAC); onNode == want.exclusive {
		t.Errorf("interface %d: exclusive is %v, and the node has the ENI's link: %v", i+1, want.exclusive, onNode)
	}
	if err := w.host.Ping(ip); err != nil {
		t.Errorf("interface %d: %v", i+1, err)
	}
	if seen, err := w.host.Call("tcp", netip.AddrPortFrom(ip, examplePort)); err != nil {
		t.Errorf("interface %d: the host, seen as %v, calls it: %v", i+1, seen, err)
	}
}

// TestFurtherNetworks adds a pod to three networks, one after the other, as Multus does. The pod asks for the interface
// of the second network by the capability deviceID, and for that of the third network by args.cni. Each interface must
// answer. The DELs run in different orders, and no DEL may change the interfaces of the other networks.
func TestFurtherNetworks(t *testing.T) {
	nltest.Need(t, "root", "ipvlan", "nftables")
	text, err := os.ReadFile("conflist-examples/requests.conflist")
	if err != nil {
		t.Fatal(err)
	}
	network := func(name, keys string) *libcni.NetworkConfigList {
		changed := strings.Replace(string(text), `"name": "cni-ipvlan-vpc-k8s"`, fmt.Sprintf(`"name": %q`, name), 1)
		changed = strings.Replace(changed, `"capabilities": {`, keys+`"capabilities": {"deviceID": true, `, 1)
		list, err := libcni.ConfListFromBytes([]byte(changed))
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	v := exampleVPC(t)
	for i, order := range [][]int{{2, 1, 0}, {0, 1, 2}, {1, 0, 2}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			w := v.launch(t, example{kubernetes: "vm-1"})
			given := w.give(t)
			attachments := []struct {
				ifName       string
				list         *libcni.NetworkConfigList
				capabilities map[string]any
			}{
				{"eth0", network("cni-ipvlan-vpc-k8s", ""), nil},
				{"net1", network("given", ""), map[string]any{"deviceID": given}},
				{"net2", network("chosen", fmt.Sprintf(`"args": {"cni": {"ips": ["100.64.0.%d"]}}, `, 80+i)), nil},
			}
			as := func(i int, verb string) *types100.Result {
				a := attachments[i]
				w.ifName, w.capabilities = a.ifName, a.capabilities
				result, err := w.call(a.list, verb, "pod")
				if err != nil {
					t.Fatalf("%s %s: %v", verb, a.ifName, err)
				}
				if verb != "ADD" {
					return nil
				}
				r, err := types100.NewResultFromResult(result)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
			addrs := map[int]netip.Addr{}
			for i := range attachments {
				ip, _ := netip.AddrFromSlice(as(i, "ADD").IPs[0].Address.IP)
				addrs[i] = ip.Unmap()
			}
			if want := netip.MustParseAddr(fmt.Sprint("100.64.0.", 80+i)); addrs[2] != want {
				t.Errorf("net2 has %s, want %s", addrs[2], want)
			}
			for _, gone := range append([]int{-1}, order...) {
				if gone >= 0 {
					as(gone, "DEL")
					as(gone, "DEL")
					delete(addrs, gone)
				}
				for i, a := range addrs {
					as(i, "CHECK")
					if seen, err := w.host.Call("tcp", netip.AddrPortFrom(a, examplePort)); err != nil {
						t.Errorf("without %d: the host, seen as %v, calls %s of %s: %v", gone, seen, a,
							attachments[i].ifName, err)
					}
				}
			}
		})
	}
}
