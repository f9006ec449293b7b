// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// original makes the changes that the original plugin makes for a pod, in the pod and on the
// node.
func (f *fabric) original(p *pod, veth, chain string, table uint32) {
	f.t.Helper()
	f.originalPair(p, veth, table)
	comment := fmt.Sprintf("name: %q id: %q", p.request.Network, p.request.ContainerID)
	for _, rule := range [][]string{
		{"-N", chain},
		{"-A", chain, "-d", p.addr, "-j", "ACCEPT", "-m", "comment", "--comment", comment},
		{"-A", chain, "!", "-d", "224.0.0.0/4", "-j", "MASQUERADE", "-m", "comment", "--comment", comment},
		{"-A", "POSTROUTING", "-s", p.addr, "-j", chain, "-m", "comment", "--comment", comment},
	} {
		f.iptables(rule...)
	}
	f.add(p.NS, nl.Route{Dst: netip.MustParsePrefix(nodeAddr + "/32"), Dev: "eth1"},
		nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr(nodeAddr), Dev: "eth1"})
	p.request.Prev.Interfaces = []*types100.Interface{{Name: "eth0", Sandbox: p.request.NetNS}, {Name: veth},
		{Name: "eth1", Sandbox: p.request.NetNS}}
}

// originalPair adds the pair of a pod as the original plugin does, with its routes and rules.
func (f *fabric) originalPair(p *pod, veth string, table uint32) (near nl.Link) {
	f.t.Helper()
	addr := netip.MustParseAddr(p.addr)
	f.add(f.node, nl.Veth{Name: veth, Peer: "eth1", PeerNS: p.NS, MTU: 9001},
		nl.Route{Dst: netip.PrefixFrom(addr, 32), Dev: veth},
		nl.Route{Dst: netip.MustParsePrefix("10.0.0.0/16"), Via: addr, Dev: veth, Table: table},
		nl.Rule{Pref: 1024, IIF: veth, Table: table})
	near, err := f.node.LinkByName(veth)
	must(f.t, err)
	return near
}

// iptables runs iptables on the node's table nat, and returns its output.
func (f *fabric) iptables(args ...string) (out string) {
	f.t.Helper()
	if err := f.node.Do(func() error {
		b, err := exec.Command("iptables", append([]string{"-w", "-t", "nat"}, args...)...).CombinedOutput()
		out = string(b)
		return err
	}); err != nil {
		f.t.Fatalf("iptables %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// TestOriginal: DEL deletes what the original plugin has made for a pod, and nothing of other pods.
func TestOriginal(t *testing.T) {
	nltest.Need(t, "iptables")
	f, other := preparedTable(t)
	f.original(other, "veth7e005493", "CNI-99aae407389c19a0a7661e64", 967)
	f.iptables("-N", "KUBE-POSTROUTING")
	f.iptables("-A", "POSTROUTING", "-m", "comment", "--comment", "kubernetes postrouting rules", "-j",
		"KUBE-POSTROUTING")
	state := func() string { return nltest.Dump(t, f.node) + f.iptables("-S") }
	before := state()

	var p *pod
	t.Run("with its namespace", func(t *testing.T) {
		g := &fabric{t, f.router, f.node, f.other}
		p = g.pod("pod2", "10.0.1.51")
		pod := nltest.Dump(t, p.NS)
		for _, prev := range []bool{true, false} {
			g.original(p, "veth0a1b2c3d", "CNI-0123456789abcdef01234567", 968)
			if !prev {
				p.request.Prev = nil
			}
			for range 2 {
				must(t, g.DEL(p))
				same(t, "DEL", before, state())
				same(t, "DEL in the pod", pod, nltest.Dump(t, p.NS))
			}
		}
	})
	t.Run("without", func(t *testing.T) {
		t.Run("lost", func(t *testing.T) {
			g := &fabric{t, f.router, f.node, f.other}
			p = g.pod("pod2", "10.0.1.53")
			g.original(p, "veth0a1b2c3d", "CNI-0123456789abcdef01234567", 968)
		})
		for range 2 {
			must(t, f.DEL(p))
			same(t, "DEL", before, state())
		}
	})
	must(t, f.DEL(other))
	// DEL must not delete a veth that another plugin of the chain may have made on the node.
	f.add(f.node, nl.Veth{Name: "veth89abcdef", Peer: "far", PeerNS: f.other})
	other.request.Prev.Interfaces = []*types100.Interface{{Name: "veth89abcdef"}}
	must(t, f.DEL(other))
	if l, err := f.node.LinkByName("veth89abcdef"); err != nil {
		t.Errorf("%s: %v", l, err)
	}
	if rules := f.iptables("-S"); strings.Contains(rules, "CNI-") {
		t.Errorf("left:\n%s", rules)
	}
}

// TestOriginalUnprintable: another program has rules in the table nat that iptables cannot print. DEL deletes the
// original plugin's objects, and leaves these rules.
func TestOriginalUnprintable(t *testing.T) {
	nltest.Need(t, "iptables", "nftables", "fib")
	for _, rule := range []string{"meta skuid 7 counter", "fib daddr type local counter", "ip saddr @block counter"} {
		t.Run(rule, func(t *testing.T) {
			f, p := preparedTable(t)
			f.iptables("-N", "KUBE-POSTROUTING")
			f.iptables("-A", "POSTROUTING", "-j", "KUBE-POSTROUTING")
			f.original(p, "veth0a1b2c3d", "CNI-0123456789abcdef01234567", 968)
			add := "nft 'add rule ip nat "
			nltest.Shell(t, f.node, "nft 'add set ip nat block { type ipv4_addr; }'; "+add+"KUBE-POSTROUTING "+rule+
				"'; "+add+"POSTROUTING "+rule+"'")
			state := func() (out string) {
				must(t, f.node.Do(func() error {
					b, err := exec.Command("nft", "list", "table", "ip", "nat").Output()
					out = string(b)
					return err
				}))
				return out
			}
			if !strings.Contains(state(), "CNI-0123456789abcdef01234567") {
				t.Fatal("the original's rules are not in nftables")
			}
			for range 2 {
				must(t, f.DEL(p))
				if left := state(); strings.Contains(left, "CNI-") || strings.Count(left, "\n\t\t"+rule) != 2 ||
					!strings.Contains(left, "jump KUBE-POSTROUTING") {
					t.Errorf("DEL has left:\n%s", left)
				}
			}
		})
	}
}

// TestOriginalUnread: DEL cannot read the pair of the original plugin on the node. DEL must fail, because it cannot
// know which objects the original plugin has made.
func TestOriginalUnread(t *testing.T) {
	nltest.Need(t, "iptables")
	f, p := preparedTable(t)
	const veth = "veth0a1b2c3d"
	f.original(p, veth, "CNI-0123456789abcdef01234567", 968)
	nltest.Shell(t, f.node, "for i in $(seq 1000); do echo link property add dev "+veth+
		" altname $(printf %0127d $i); done | ip -force -batch - 2>/dev/null || true")
	if _, err := f.node.LinkByName(veth); err == nil {
		t.Fatal("the link can be asked for, and so this test cannot tell")
	}
	rule := nl.Rule{Pref: 1024, IIF: veth, Table: 968}
	prev := p.request.Prev
	for _, c := range []struct {
		why string
		set func()
	}{
		{"by its rule and the pod", func() { p.request.Prev = nil }},
		{"by prevResult", func() { p.request.Prev = prev; must(t, rule.Del(f.node)) }},
	} {
		c.set()
		if err := f.DEL(p); err == nil || !strings.Contains(err.Error(), "link "+veth) {
			t.Errorf("%s: DEL says %v", c.why, err)
		}
	}
	must(t, (nl.Veth{Name: veth}).Del(f.node))
	must(t, f.DEL(p))
	if rules := f.iptables("-S"); strings.Contains(rules, "CNI-") {
		t.Errorf("left:\n%s", rules)
	}
}

// TestOriginalAgain rolls a node back to the original plugin. After the steps that the docs name, the original's DEL
// deletes a pod of ours. Without these steps, this DEL fails at its first iptables command. For a missing rule or
// chain, it accepts only the exit status 1.
func TestOriginalAgain(t *testing.T) {
	nltest.Need(t, "iptables")
	f, p := preparedTable(t)
	f.iptables("-N", "KUBE-POSTROUTING") // makes iptables create its table
	before := nltest.Dump(t, f.node) + f.iptables("-S")
	must(t, f.ADD(p))
	out, err := exec.Command("sh", "-c", "printf %s net"+p.request.ContainerID+" | sha512sum | cut -c1-24").Output()
	must(t, err)
	chain := "CNI-" + strings.TrimSpace(string(out))
	del := fmt.Sprintf(`iptables -w -t nat -D POSTROUTING -s %s -j %s -m comment --comment 'name: "net" id: "%s"'`,
		p.addr, chain, p.request.ContainerID)
	nltest.Shell(t, f.node, del+" && exit 9; [ $? = 2 ]")

	text, err := os.ReadFile("../docs/operations.md")
	must(t, err)
	_, loop, _ := strings.Cut(string(text), "\n    for id in $(crictl pods -q)")
	loop, _, _ = strings.Cut("for id in "+p.request.ContainerID+loop, "\n")
	nltest.Shell(t, f.node, strings.ReplaceAll(loop, `"cni-ipvlan-vpc-k8s$id"`, `"net$id"`))
	nltest.Shell(t, f.node, del+" && exit 9; [ $? = 1 ]")
	f.iptables("-F", chain)
	f.iptables("-X", chain)
	veth := p.result.Interfaces[1].Name
	nltest.Shell(t, f.node, "ip rule del iif "+veth+"; ip link del "+veth)
	same(t, "the original's DEL", before, nltest.Dump(t, f.node)+f.iptables("-S"))
}

// TestOriginalWithoutIPTables: without iptables, DEL deletes everything else.
func TestOriginalWithoutIPTables(t *testing.T) {
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node, p.NS)
	f.originalPair(p, "veth7e005493", 967)
	p.request.Prev = nil
	t.Setenv("PATH", "")
	must(t, f.DEL(p))
	same(t, "DEL", before, nltest.Dump(t, f.node, p.NS))
	must(t, f.DEL(p))
}
