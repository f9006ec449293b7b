// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// preparedTable returns a fabric on which a pod was added and deleted, so the node has the objects that stay after the
// last pod. The returned pod has only its link to the VPC.
func preparedTable(t *testing.T) (*fabric, *pod) {
	t.Helper()
	f := newFabric(t)
	first := f.pod("first", "10.0.1.52")
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	return f, f.pod("pod1", "10.0.1.50")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, what, want, got string) {
	t.Helper()
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s: -want +got\n%s", what, d)
	}
}

// TestLifecycle adds, checks and deletes a pod, each twice.
func TestLifecycle(t *testing.T) {
	f, p := preparedTable(t)
	dump := func() string { return nltest.Dump(t, f.node, p.NS) }
	before := dump()
	must(t, f.ADD(p))
	during := dump()
	must(t, f.CHECK(p))
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	same(t, "the second ADD changed something", during, dump())
	must(t, f.DEL(p))
	same(t, "DEL left something", before, dump())
	if f.CHECK(p) == nil {
		t.Error("CHECK after DEL: no error")
	}
	must(t, f.DEL(p))
	same(t, "the second DEL changed something", before, dump())
}

// TestDelWithoutNamespace calls DEL without a namespace. containerd does this at its second DEL, and runtimes do after
// a reboot.
func TestDelWithoutNamespace(t *testing.T) {
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node)
	must(t, f.ADD(p))
	path := p.request.NetNS
	for _, netns := range []string{"", "/run/netns/absent", path} {
		p.request.NetNS = netns
		p.request.Prev = nil
		must(t, f.DEL(p))
		same(t, "DEL with namespace "+netns, before, nltest.Dump(t, f.node))
	}
}

// TestDelOfHalf: DEL deletes a pod of which a killed ADD has made only a part.
func TestDelOfHalf(t *testing.T) {
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node, p.NS)
	for _, lost := range []func(){
		func() {},
		func() { delRules(t, f.node) },
		func() { must(t, nl.Wiring{{NS: p.NS, Object: nl.Splice{ENI: "eth0", Veth: "eth1"}}}.Del()) },
		func() {
			must(t, nl.Wiring{{NS: f.node, Object: nl.Veth{Name: p.result.Interfaces[1].Name}}}.Del())
		},
	} {
		must(t, f.ADD(p))
		lost()
		must(t, f.DEL(p))
		same(t, "DEL left something", before, nltest.Dump(t, f.node, p.NS))
	}
}

func delRules(t *testing.T, n *nl.NS) {
	rules, err := n.Rules()
	must(t, err)
	for _, r := range rules {
		if strings.HasPrefix(r.IIF, "veth") {
			must(t, nl.Wiring{{NS: n, Object: r}}.Del())
		}
	}
}

// TestAddOrNothing: an ADD fails late, because another program has made a default route in the pod. ADD must undo
// everything.
func TestAddOrNothing(t *testing.T) {
	f, p := preparedTable(t)
	f.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: netip.MustParseAddr("10.0.1.1"), Dev: "eth0"})
	before := nltest.Dump(t, f.node, p.NS)
	err := f.ADD(p)
	if err == nil || !strings.HasPrefix(err.Error(),
		"pod: ip route add default via 10.0.9.10 dev eth1 proto 72: file exists") {
		t.Errorf("got %v", err)
	}
	same(t, "a failed ADD left something", before, nltest.Dump(t, f.node, p.NS))
	must(t, f.DEL(p))
	same(t, "DEL after it", before, nltest.Dump(t, f.node, p.NS))
}

// TestAddRefusesForeignInterface: another program has made eth1 in the pod. ADD fails, and DEL does not delete eth1.
func TestAddRefusesForeignInterface(t *testing.T) {
	f, p := preparedTable(t)
	f.add(f.node, nl.Veth{Name: "vethforeign", Peer: "eth1", PeerNS: p.NS})
	before := nltest.Dump(t, f.node, p.NS)
	if f.ADD(p) == nil {
		t.Error("no error")
	}
	same(t, "ADD", before, nltest.Dump(t, f.node, p.NS))
	must(t, f.DEL(p))
	same(t, "DEL", before, nltest.Dump(t, f.node, p.NS))
}

// TestUpgrade checks and deletes a pod whose service loop is not that of the current configuration.
func TestUpgrade(t *testing.T) {
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node, p.NS)
	for made, now := range map[string]string{"masquerade": "", "redirect": "masquerade"} {
		p.request.Config.ServiceLoop = made
		must(t, f.ADD(p))
		p.request.Config.ServiceLoop = now
		must(t, f.CHECK(p))
		must(t, f.DEL(p))
		same(t, "DEL of a pod made with "+made, before, nltest.Dump(t, f.node, p.NS))
	}
}

// TestCheckOlder: after the ADD of a pod, another pod is added with another configuration, or the node loses or gets
// IPv6. CRI-O calls CHECK of the older pod with the configuration of its ADD. CHECK succeeds as long as the pod has all
// objects that it needs.
func TestCheckOlder(t *testing.T) {
	const lose, get = "-6 addr del fd00:0:9::10/64 dev eth0", "-6 addr add fd00:0:9::10/64 dev eth0 nodad"
	for name, x := range map[string]struct {
		before, after string
		change        func(*ptp.Config)
	}{
		"other NodePorts": {"", "", func(c *ptp.Config) { c.NodePorts = new("1:32767") }},
		"another mark":    {"", "", func(c *ptp.Config) { c.NodePortMark = new(uint32(0x4000)) }},
		"no NodePorts":    {"", "", func(c *ptp.Config) { c.NodePorts = new("") }},
		"IPv6 lost":       {"", lose, func(*ptp.Config) {}},
		"IPv6 got":        {lose, get, func(*ptp.Config) {}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			iproute(t, f.node, x.before)
			older, later := f.pod("pod1", pod1Addr), f.configured(f.pod("pod2", pod2Addr), x.change)
			must(t, f.ADD(older))
			iproute(t, f.node, x.after)
			must(t, f.CHECK(older))
			must(t, f.ADD(later))
			must(t, f.CHECK(older))
			must(t, f.CHECK(later))
			for _, chain := range []string{"prerouting", "postrouting", "doubts", "senders"} {
				if chain == "prerouting" && name == "no NodePorts" {
					continue
				}
				f.nft("flush", "chain", "inet", "cni_ipvlan_vpc_k8s_net", chain)
				if f.CHECK(older) == nil {
					t.Errorf("CHECK is content without the chain %s", chain)
				}
				must(t, f.ADD(later))
				f.nft("insert", "rule", "inet", "cni_ipvlan_vpc_k8s_net", chain, "drop")
				if f.CHECK(older) == nil {
					t.Errorf("CHECK is content with a rule of others in the chain %s", chain)
				}
				must(t, f.ADD(later))
			}
			must(t, f.CHECK(older))
		})
	}
}

// TestLoopWanted: a pod has no service loop, but the configuration has one. CHECK fails, and another ADD adds the loop.
func TestLoopWanted(t *testing.T) {
	f, p := preparedTable(t)
	p.request.Config.ServiceLoop = "none"
	must(t, f.ADD(p))
	must(t, f.DEL(p))
	before := nltest.Dump(t, f.node, p.NS)
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	p.request.Config.ServiceLoop = ""
	if f.CHECK(p) == nil {
		t.Error("CHECK is content")
	}
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	p.request.Config.ServiceLoop = "none"
	result := p.result
	if err := f.ADD(p); err == nil || !strings.Contains(err.Error(), "has a service loop") {
		t.Errorf("ADD without a loop to a pod that has one: %v", err)
	}
	p.result = result
	must(t, f.CHECK(p))
	must(t, nl.Splice{ENI: "eth0", Veth: "eth1"}.Del(p.NS))
	if err := f.CHECK(p); err == nil || strings.Contains(err.Error(), "has a service loop") {
		t.Errorf("CHECK of a pod whose loop is broken, which is to have none by now: %v", err)
	}
	must(t, f.DEL(p))
	same(t, "DEL", before, nltest.Dump(t, f.node, p.NS))
}

// TestNodeRepairs flushes or resets objects that serve all pods. CHECK fails, and the next ADD restores the objects.
func TestNodeRepairs(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	table := nl.Table{Family: "inet", Name: "cni_ipvlan_vpc_k8s_net"}
	marked := nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254}
	for name, spoil := range map[string]func() error{
		"table deleted": func() error { return table.Del(f.node) },
		"table flushed": func() error {
			other := table
			other.Chains = []nl.Chain{{Name: "forward", Type: "filter", Hook: "forward",
				Rules: []nl.NFRule{{nl.Count()}}}}
			return other.Add(f.node)
		},
		"rule deleted":   func() error { return marked.Del(f.node) },
		"forwarding off": func() error { return nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"}.Add(f.node) },
		"programs gone":  func() error { return nl.Splice{ENI: "eth0", Veth: "eth1"}.Del(p.NS) },
		"pod rules gone": func() error { delRules(t, f.node); return nil },
		"neighbour gone": func() error {
			return nl.Neigh{Addr: netip.MustParseAddr("10.0.1.50"), Dev: p.result.Interfaces[1].Name,
				MAC: p.result.Interfaces[2].Mac}.Del(f.node)
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, spoil())
			if f.CHECK(p) == nil {
				t.Error("CHECK is content")
			}
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
		})
	}
}

// TestStorm adds and deletes many pods at the same time, on a node that has had no pod.
func TestStorm(t *testing.T) {
	f := newFabric(t)
	var pods []*pod
	for i := range 12 {
		pods = append(pods, f.pod(fmt.Sprint("pod", i), fmt.Sprint("10.0.1.", 50+i)))
	}
	all := func(command func(*pod) error) {
		t.Helper()
		errs := make(chan error, len(pods))
		for _, p := range pods {
			go func() { errs <- command(p) }()
		}
		for range pods {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	}
	all(f.ADD)
	all(f.CHECK)
	all(f.DEL)
	links, err := f.node.Links()
	must(t, err)
	for _, l := range links {
		if strings.HasPrefix(l.Name, "veth") {
			t.Errorf("%s is still there", l)
		}
	}
}

// TestCheckAllowsOthers changes routes as later plugins do, and sysctls as administrators do.
// CHECK succeeds.
func TestCheckAllowsOthers(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	everywhere, node := netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr(nodeAddr)
	must(t, nl.Wiring{{NS: p.NS, Object: nl.Route{Dst: everywhere, Via: node, Dev: "eth1",
		Protocol: nl.RouteProtocol}}}.Del())
	// Multus may lead the default route to the link of another network.
	f.add(f.other, nl.Veth{Name: "net9", Peer: "net1", PeerNS: p.NS})
	f.add(p.NS, nl.Route{Dst: everywhere, Dev: "net1"})
	f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/eth0/rp_filter", Value: "0"})
	must(t, f.CHECK(p))
}

// TestGC deletes pairs of attachments that are not valid, and rules of pairs that are gone.
func TestGC(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	valid := nltest.Dump(t, f.node)
	pod2 := f.pod("pod2", "10.0.1.51")
	must(t, f.ADD(pod2))
	// The original plugin has left rules without a protocol number.
	f.add(f.node, nl.Rule{Pref: 1024, IIF: "veth12345678", Table: 967})
	const static = 4
	others := []nl.Object{
		nl.Rule{Pref: 1024, IIF: "veth87654321", Table: 77, Protocol: static},
		nl.Rule{Pref: 1023, IIF: "veth87654321", Table: 78},
		nl.Rule{Pref: 1024, IIF: "vethforeign", Table: 79},
		nl.Rule{Pref: 1024, IIF: "veth87654321", Table: 80, From: netip.MustParsePrefix("10.8.0.0/16")},
	}
	f.add(f.node, others...)
	before := nltest.Dump(t, f.node)
	must(t, f.GC(p, p.request.Attachment, pod2.request.Attachment))
	same(t, "GC of nothing but a stale rule", strings.ReplaceAll(before,
		"node: ip rule add pref 1024 iif veth12345678 lookup 967\n", ""), nltest.Dump(t, f.node))
	for _, o := range others {
		must(t, nl.Wiring{{NS: f.node, Object: o}}.Del())
	}
	must(t, f.GC(p, p.request.Attachment))
	same(t, "GC of pod2", valid, nltest.Dump(t, f.node))
	must(t, f.CHECK(p))
	p.request.Network = "another"
	must(t, f.GC(p))
	same(t, "GC of another network", valid, nltest.Dump(t, f.node))
}

// TestForeignTable: another program has routes in the routing table that the next pod would get. The pod gets another
// table.
func TestForeignTable(t *testing.T) {
	f, p := preparedTable(t)
	for i := range uint32(100) { // the pod would get one of these tables
		f.add(f.node, nl.Route{Dst: netip.MustParsePrefix("10.7.0.0/16"), Via: netip.MustParseAddr("10.0.9.1"),
			Dev: "eth0", Table: 257 + i})
	}
	before := nltest.Dump(t, f.node)
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	must(t, f.ADD(p))
	if d := nltest.Dump(t, f.node); !strings.Contains(d, "via 169.254.72.1 dev "+p.result.Interfaces[1].Name+
		" onlink table 16777") {
		t.Errorf("no routes in a table of our own:\n%s", d)
	}
	must(t, f.DEL(p))
	same(t, "DEL", before, nltest.Dump(t, f.node))
}

// TestForeignRoutes: other programs remove their routes from tables before the pod's, or add routes to the pod's table.
// The pod keeps its table.
func TestForeignRoutes(t *testing.T) {
	f, p := preparedTable(t)
	routes := func(first uint32) (w nl.Wiring) {
		for i := range uint32(100) {
			w = append(w, nl.Step{NS: f.node, Object: nl.Route{Dst: netip.MustParsePrefix("10.7.0.0/16"),
				Via: netip.MustParseAddr("10.0.9.1"), Dev: "eth0", Table: first + i}})
		}
		return w
	}
	inTheWay, later := routes(257), routes(1<<24+257)
	must(t, inTheWay.Add())
	must(t, f.ADD(p))
	for _, change := range []func() error{inTheWay.Del, later.Add} {
		must(t, change())
		before := nltest.Dump(t, f.node)
		must(t, f.CHECK(p))
		must(t, f.ADD(p))
		same(t, "the second ADD changed something", before, nltest.Dump(t, f.node))
	}
}

func TestStatus(t *testing.T) {
	f := newFabric(t)
	status := func(link string) error {
		return f.node.Do(func() error {
			return ptp.Commands().Status(t.Context(),
				&plugin.Request[ptp.Config]{Config: ptp.Config{HostInterface: link}})
		})
	}
	must(t, status("eth0"))
	if err := status("ens5"); err == nil || err.Error() != "hostInterface: link ens5: no such device" {
		t.Errorf("got %v", err)
	}
}

// TestHostInterfaceMissing: the node has no link hostInterface. The error of ADD says which link hostInterface must
// name.
func TestHostInterfaceMissing(t *testing.T) {
	f, p := preparedTable(t)
	p.request.Config.HostInterface = "ens5"
	refused, ok := errors.AsType[*plugin.Error](f.ADD(p))
	if !ok || refused.Code != plugin.CodeInvalid || !strings.Contains(refused.Hint, "the boot ENI's link") {
		t.Errorf("got %+v", refused)
	}
}

// TestBelievingNode: a node forwards IPv6, but its new links accept router advertisements. The node must not accept
// them from pods. The kernel looks at the forwarding setting of the link, not of the node. Repair also fixes a pair of
// an earlier release.
func TestBelievingNode(t *testing.T) {
	for _, c := range []struct{ ra, forwarding string }{{"1", "1"}, {"2", "1"}, {"1", "0"}} {
		f := newFabric(t)
		f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"}, // first: it resets the next one
			nl.Sysctl{Key: "net/ipv6/conf/default/forwarding", Value: c.forwarding},
			nl.Sysctl{Key: "net/ipv6/conf/default/accept_ra", Value: c.ra})
		p := f.routed("pod1", pod1Addr, dual)
		must(t, f.ADD(p))
		believes := nl.Sysctl{Key: "net/ipv6/conf/" + p.veth() + "/accept_ra", Value: c.ra}
		if ignores := (nl.Sysctl{Key: believes.Key, Value: "0"}); ignores.Check(f.node) != nil {
			t.Errorf("%+v: %s accepts router advertisements: %v", c, p.veth(), ignores.Check(f.node))
		}
		f.add(f.node, believes)
		must(t, f.CHECK(p))
		l := f.missing(p)
		if _, err := f.restore(l); err != nil || l.Serious() || len(l.Node) != 1 {
			t.Errorf("%+v: Missing finds %v; Restore: %v", c, l.Node, err)
		}
		must(t, nl.Sysctl{Key: believes.Key, Value: "0"}.Check(f.node))
	}
}

// TestUnchained: ADD fails if no plugin comes before it in the chain.
func TestUnchained(t *testing.T) {
	f, p := preparedTable(t)
	prev := p.request.Prev
	p.request.Prev = nil
	if err := f.ADD(p); err == nil || err.Error() != "must be called as chained plugin" {
		t.Errorf("got %v", err)
	}
	p.request.Prev = prev
	p.request.Prev.IPs = nil
	if err := f.ADD(p); err == nil || err.Error() != "got no container IPs" {
		t.Errorf("got %v", err)
	}
	must(t, f.DEL(p))
}

// TestNames: ADD refuses an impossible name before it changes anything. The DEL after this ADD succeeds with any
// configuration.
func TestNames(t *testing.T) {
	f, p := preparedTable(t)
	before := nltest.Dump(t, f.node, p.NS)
	p.request.Config.ContainerInterface = "eth0"
	if err := f.ADD(p); err == nil ||
		err.Error() != `containerInterface: "eth0": the pod's link to the VPC has this name` {
		t.Errorf("got %v", err)
	}
	for _, name := range []string{"sixteen-bytes-up", "a/b", "lo", ""} {
		p.request.Config.ContainerInterface = name
		must(t, f.DEL(p))
		same(t, "DEL with containerInterface "+name, before, nltest.Dump(t, f.node, p.NS))
	}
	p.request.Config.ContainerInterface = "exactly15bytes_"
	must(t, p.request.Config.Validate())
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	must(t, f.DEL(p))
}
