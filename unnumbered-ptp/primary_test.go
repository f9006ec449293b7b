// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const floating = "10.0.9.77" // a virtual IP address, which keepalived moves from node to node

// iproute runs each line of a script as a command of ip(8) in a namespace. [nl.Addr] does not have all attributes of
// addresses.
func iproute(t testing.TB, n *nl.NS, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		must(t, n.Do(func() error { return exec.Command("ip", strings.Fields(line)...).Run() }))
	}
}

// again removes the node's own addresses and adds them again, as DHCP or an administrator may do. Afterwards, these
// addresses are the last addresses of the link.
const again = `
	addr del 10.0.9.10/24 dev eth0
	addr add 10.0.9.10/24 dev eth0
	route replace default via 10.0.9.1
	-6 addr del fd00:0:9::10/64 dev eth0
	-6 addr add fd00:0:9::10/64 dev eth0 nodad
	-6 route replace default via fd00:0:9::1`

// TestPrimary adds addresses to hostInterface in different orders. The objects of pods must have the node's own
// address.
func TestPrimary(t *testing.T) {
	for name, script := range map[string]string{
		"VIPs after it": "addr add 10.0.9.77/32 dev eth0 \n -6 addr add fd00:0:9::77/128 dev eth0 nodad " +
			"preferred_lft 0",
		"VIPs before it": "addr add 10.0.9.77/32 dev eth0 \n -6 addr add fd00:0:9::77/128 dev eth0 nodad " +
			"preferred_lft 0" + again,
		"not deprecated": "addr add 10.0.9.77/32 dev eth0 \n -6 addr add fd00:0:9::77/128 dev eth0 nodad" +
			again,
		"deprecated, of the subnet": "addr add 10.0.9.77/24 dev eth0 preferred_lft 0 \n -6 addr add fd00:0:9::77/64 " +
			"dev eth0 nodad preferred_lft 0" + again,
		"wide, but not the source of the default route": "addr add 10.0.9.77/16 dev eth0 \n -6 addr add " +
			"fd00:0:9::77/48 dev eth0 nodad \n" +
			"route replace default via 10.0.9.1 src 10.0.9.10 \n -6 route replace default via fd00:0:9::1 src " +
			"fd00:0:9::10",
		"as wide, but secondary": "addr add 10.0.9.77/24 dev eth0",
		"from DHCP": "addr del 10.0.9.10/24 dev eth0 \n -6 addr del fd00:0:9::10/64 dev eth0 \n" +
			"addr add 10.0.9.77/32 dev eth0 \n -6 addr add fd00:0:9::77/128 dev eth0 nodad \n" +
			"addr add 10.0.9.10/32 dev eth0 valid_lft 3600 preferred_lft 3600 \n -6 addr add fd00:0:9::10/128 dev " +
			"eth0 nodad valid_lft 450 preferred_lft 140",
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			iproute(t, f.node, strings.TrimSpace(script))
			p := f.pod("pod1", pod1Addr, dual)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			knows(t, f, p, nodeAddr)
		})
	}
}

// knows checks the routes and rules of the node and the pod. Those that name an address of the node must name addr, or
// sixth(addr), and not the node's other address.
func knows(t *testing.T, f *fabric, p *pod, addr string) {
	t.Helper()
	var table []byte
	must(t, f.node.Do(func() (err error) {
		table, err = exec.Command("nft", "list", "table", "inet", "cni_ipvlan_vpc_k8s_net").CombinedOutput()
		return err
	}))
	all := nltest.Dump(t, f.node, p.NS) + string(table)
	other := map[string]string{nodeAddr: floating, floating: nodeAddr}[addr]
	veth := p.result.Interfaces[1].Name
	for _, c := range []struct {
		of    func(addr string) string
		texts []string
	}{
		{strings.Clone, []string{
			"default via %s dev eth1 proto 72", // in the pod; its IPv6 default route may lead through its ENI
			"ip route add " + p.addr + "/32 dev " + veth + " scope link src %s proto 72",
			"ct status dnat snat ip to %s ", // for packets that a Service sends back to the pod that called it
			"ip saddr 10.0.0.0/16 snat ip to %s ",
		}},
		{sixth, []string{
			"ip -6 route add " + sixth(p.addr) + "/128 dev " + veth + " src %s ",
			"ct status dnat snat ip6 to %s ",
			"0x00002000 snat ip6 to %s ",
		}},
	} {
		for _, text := range c.texts {
			mine, others := fmt.Sprintf(text, c.of(addr)), fmt.Sprintf(text, c.of(other))
			if !strings.Contains(all, mine) || strings.Contains(all, others) {
				t.Errorf("want %q, and not %q, in\n%s", mine, others, all)
			}
		}
	}
}

// TestPrimaryOnly: the node's only address is deprecated. ADD uses it nevertheless.
func TestPrimaryOnly(t *testing.T) {
	f := newFabric(t)
	iproute(t, f.node, "addr del 10.0.9.10/24 dev eth0 \n -6 addr del fd00:0:9::10/64 dev eth0 \n"+
		"addr add 10.0.9.77/24 dev eth0 preferred_lft 0 \n -6 addr add fd00:0:9::77/64 dev eth0 nodad preferred_lft 0")
	p := f.pod("pod1", pod1Addr, dual)
	must(t, f.ADD(p))
	knows(t, f, p, floating)
}

// TestPrimaryChanges changes the primary address of the node. CHECK of a pod with the old address succeeds as long as
// the node has this address, and fails afterwards.
func TestPrimaryChanges(t *testing.T) {
	f := newFabric(t)
	p, late := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr, dual)
	must(t, f.ADD(p))
	iproute(t, f.node, "addr add 10.0.9.77/24 dev eth0 \n -6 addr add fd00:0:9::77/64 dev eth0 nodad \n"+
		"route replace default via 10.0.9.1 src 10.0.9.77 \n -6 route replace default via fd00:0:9::1 src fd00:0:9::77")
	must(t, f.CHECK(p))
	must(t, f.ADD(late))
	knows(t, f, late, floating)
	must(t, f.CHECK(late))
	must(t, f.CHECK(p))
	iproute(t, f.node, "addr del 10.0.9.10/24 dev eth0")
	if f.CHECK(p) == nil {
		t.Error("CHECK is content with an address that the node has not")
	}
}

// TestPrimaryThird: the node's primary address changes twice. So a pod, the table that serves all pods, and the next
// pod may each have another address of the node.
func TestPrimaryThird(t *testing.T) {
	f := newFabric(t)
	p, late := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr, dual)
	must(t, f.ADD(p))
	prefer := func(addr string) {
		iproute(t, f.node, "addr add "+addr+"/24 dev eth0 \n -6 addr add "+sixth(addr)+"/64 dev eth0 nodad \n"+
			"route replace default via 10.0.9.1 src "+addr+" \n -6 route replace default via fd00:0:9::1 src "+
			sixth(addr))
	}
	prefer(floating)
	must(t, f.ADD(late))
	prefer("10.0.9.78")
	must(t, f.CHECK(p))
	must(t, f.CHECK(late))
	must(t, f.DEL(late))
	must(t, f.CHECK(p))
	// Only the address of the other family may have changed.
	iproute(t, f.node, "route replace default via 10.0.9.1 src "+nodeAddr)
	must(t, f.ADD(late))
	must(t, f.CHECK(p))
	must(t, f.CHECK(late))
	f.nft("add", "rule", "inet", "cni_ipvlan_vpc_k8s_net", "postrouting", "counter")
	if f.CHECK(p) == nil {
		t.Error("CHECK is content with a table that has more")
	}
}

// TestPrimaryOfMany: a node has 16 addresses of each family. A failing CHECK must not try all pairs of an IPv4 and an
// IPv6 address.
func TestPrimaryOfMany(t *testing.T) {
	for what, spoil := range map[string]func(*fabric, *pod){
		"pod": func(f *fabric, p *pod) {
			iproute(t, f.node, "neigh replace "+pod1Addr+" lladdr 02:00:00:00:00:01 dev "+p.result.Interfaces[1].Name)
		},
		"table": func(f *fabric, _ *pod) {
			f.nft("add", "rule", "inet", "cni_ipvlan_vpc_k8s_net", "postrouting", "counter")
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFabric(t)
			p := f.pod("pod1", pod1Addr, dual)
			must(t, f.ADD(p))
			spoil(f, p)
			cost := func() float64 {
				return testing.AllocsPerRun(1, func() {
					if f.CHECK(p) == nil {
						t.Error("CHECK is content")
					}
				})
			}
			few := cost()
			for i := range 15 {
				a := fmt.Sprint("10.0.9.", 100+i)
				iproute(t, f.node, "addr add "+a+"/24 dev eth0 \n -6 addr add "+sixth(a)+"/64 dev eth0 nodad")
			}
			if many := cost(); many > 10*few {
				t.Errorf("CHECK allocates %v times, and with 15 more addresses of each family %v times", few, many)
			}
		})
	}
}
