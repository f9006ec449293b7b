// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestRoutedCheck removes single objects of a routed pod from the node. CHECK names each object, and Missing names
// those that Restore can restore. After Restore, all is as before, and the pod reaches all destinations.
func TestRoutedCheck(t *testing.T) {
	f := newFabric(t)
	p := f.routed("pod1", pod1Addr, dual)
	must(t, f.ADD(p))
	other := f.routed("pod3", pod3Addr, dual)
	must(t, f.ADD(other))
	must(t, f.CHECK(p))
	serve(t, f.other, ":8080")
	serve(t, f.router, internet+":443")
	if l := f.missing(p); !l.None() {
		t.Fatalf("of what is there it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
	state := func() string {
		lines := strings.Split(f.sorted()+nltest.Dump(t, f.node, p.NS), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	eni, err := f.node.LinkByName("eth1")
	must(t, err)
	const marks = "cni_ipvlan_vpc_k8s._enis"
	table, mark := decimal(nl.RoutedTable(eni.Index)), f.markOf(eni.Index)
	veth, own, own6, before := p.veth(), pod1Addr, sixth(pod1Addr), state()
	for _, x := range []struct{ lose, want string }{
		{"ip route del " + own + " dev " + veth + " table main metric 0", own + "/32 dev "},
		{"ip -6 route del " + own6 + " dev " + veth, own6 + "/128 dev "},
		{"ip route del " + own + " dev " + veth + " table 2147483720", "table 2147483720"},
		{"ip -6 route del " + own6 + " dev " + veth + " table 2147483720", "table 2147483720"},
		{"ip neigh del " + own + " dev " + veth, "ip neigh add " + own},
		{"ip neigh del " + own6 + " dev " + veth, "ip neigh add " + own6},
		{"ip addr del 169.254.72.2/32 dev eth1", "ip addr add 169.254.72.2/32"},
		{"ip route del 10.0.0.0/16 dev eth1 table " + table, "ip route replace 10.0.0.0/16"},
		{"ip -6 route del fd00::/32 dev eth1 table " + table, "ip -6 route replace fd00::/32"},
		{"ip rule del pref 512", "pref 512"},
		{"ip -6 rule del pref 512", "pref 512"},
		{"ip rule del pref 1016", "pref 1016"},
		{"ip -6 rule del pref 1016", "pref 1016"},
		{"ip rule del pref 1017", "pref 1017"},
		{"ip -6 rule del pref 1017", "pref 1017"},
		{"ip -6 rule del pref 1019", "pref 1019"},
		{"ip rule del pref 1018 table " + table, "pref 1018"},
		{"ip -6 rule del pref 1018 table " + table, "pref 1018"},
		{"ip rule del pref 1014", "pref 1014"},
		{"ip -6 rule del pref 1014", "pref 1014"},
		{"ip rule del pref 1015 iif eth1", "pref 1015"},
		{"ip -6 rule del pref 1015 iif eth1", "pref 1015"},
		{"nft delete table inet " + marks, "marks the packets of the ENI's pods"},
		{"nft flush map inet " + marks + " branches", "marks the packets of the ENI's pods"},
		{"nft delete element inet " + marks + " arrivals '{ eth1 }'", "the map arrivals in the table " + marks},
		{"nft flush chain inet " + marks + " " + mark + "_arrived", mark + "_arrived"},
		{"nft flush chain inet " + marks + " prerouting", marks},
		{"nft flush chain inet " + marks + " " + mark, mark},
		{"nft 'add table inet " + marks + " { flags dormant; }'", "dormant"},
		{"nft delete table inet cni_ipvlan_vpc_k8s._routed.net", "cni_ipvlan_vpc_k8s._routed.net"},
		{"nft flush chain inet cni_ipvlan_vpc_k8s._routed.net senders", "cni_ipvlan_vpc_k8s._routed.net"},
		{"nft flush chain inet cni_ipvlan_vpc_k8s._routed.net postrouting", "cni_ipvlan_vpc_k8s._routed.net"},
		{"nft delete table arp cni_ipvlan_vpc_k8s._ask.eth1", "cni_ipvlan_vpc_k8s._ask.eth1"},
		{"nft flush chain arp cni_ipvlan_vpc_k8s._ask.eth1 output", "cni_ipvlan_vpc_k8s._ask.eth1"},
		{"ip rule del pref 1018 table " + table + "; ip -6 rule del pref 1018 table " + table, "pref 1018"},
		{"ip link set " + veth + " down", veth},
		{"ip link set " + veth + " down; ip link set " + veth + " up", veth},
		{"sysctl -qw net.ipv4.ip_forward=0", "net.ipv4.ip_forward"},
	} {
		t.Run(x.lose, func(t *testing.T) {
			nltest.Shell(t, f.node, x.lose)
			if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("CHECK says %v, not %q", err, x.want)
			}
			l := f.missing(p)
			if !l.Serious() || len(l.Pod) > 0 || l.Changed != nil {
				t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
			}
			done, err := f.restore(l)
			if err != nil || len(done) != len(l.Node) {
				t.Errorf("restored %v; %v", done, err)
			}
			same(t, "Restore", before, state())
			must(t, f.CHECK(p))
			must(t, f.CHECK(other))
			for _, to := range []string{otherAddr + ":8080", internet + ":443"} {
				if _, err := call(p.NS, "tcp4", to); err != nil {
					t.Error(err)
				}
			}
			if t.Failed() { // the next part needs whole pods
				must(t, f.ADD(p))
				must(t, f.ADD(other))
				before = state()
			}
		})
	}
}

// sorted returns the lines of the node's nftables rules in sorted order, because nft lists a restored table last.
func (f *fabric) sorted() string {
	lines := strings.Split(f.nft("list", "ruleset"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// decimal returns a number as nft(8) and ip(8) print it.
func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// markOf returns the chain that marks packets of an ENI's pods.
func (f *fabric) markOf(eni int) string {
	f.t.Helper()
	chain, err := nl.Table{Family: "inet", Name: "cni_ipvlan_vpc_k8s._enis"}.Branch(f.node, nl.RoutedGroup(eni))
	must(f.t, err)
	return chain
}

// TestRoutedCheckPod changes the namespace of a routed pod. CHECK and Missing name each change. Restore repairs nothing
// in this namespace.
func TestRoutedCheckPod(t *testing.T) {
	for name, x := range map[string]struct{ lose, want string }{
		"default route":         {"ip route del default", "ip route add default via 169.254.1.1 dev eth0"},
		"IPv6 default route":    {"ip -6 route del default", "ip -6 route add default via fe80::1 dev eth0"},
		"another default route": {"ip route replace default via 169.254.1.9 dev eth0 onlink", "ip route add default"},
		"neighbour":             {"ip neigh del 169.254.1.1 dev eth0", "ip neigh add 169.254.1.1"},
		"IPv6 neighbour":        {"ip neigh del fe80::1 dev eth0", "ip neigh add fe80::1"},
		"address":               {"ip addr del 10.0.1.50/32 dev eth0", "ip addr add 10.0.1.50/32"},
		"IPv6 address":          {"ip addr del fd00:0:1::50/128 dev eth0", "ip addr add fd00:0:1::50/128"},
		"metadata":              {"ip route del prohibit 169.254.169.254", "ip route add prohibit 169.254.169.254/32"},
		"metadata of IPv6":      {"ip -6 route del fd00:ec2::254", "ip -6 route add prohibit fd00:ec2::254/128"},
		"filters":               {"tc qdisc del dev eth0 clsact", "tc filter"},
		"link":                  {"ip link set eth0 down", "ip link set eth0 up"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			p := f.routed("pod1", pod1Addr, dual)
			p.request.Config.BlockInstanceMetadata = new(true)
			f.misses(p, x.lose, x.want)
			must(t, f.DEL(p))
			same(t, "DEL", p.bare, nltest.Dump(t, p.NS))
		})
	}
}

// TestRoutedFlush removes objects that serve all routed pods from the node, as firewalls and network managers do. The
// ADD of another pod on the ENI restores them for all pods. A collection and Restore together do the same.
func TestRoutedFlush(t *testing.T) {
	f := newFabric(t)
	serve(t, f.other, ":8080")
	serve(t, f.router, internet+":443")
	p, other := f.routed("pod1", pod1Addr, dual), f.routed("pod3", pod3Addr, dual)
	must(t, f.ADD(p))
	must(t, f.ADD(other))
	for name, lose := range map[string]string{
		"ruleset":   "nft flush ruleset",
		"rules":     "ip rule flush proto 72; ip -6 rule flush proto 72",
		"routes":    "ip route flush proto 72 table all; ip -6 route flush proto 72 table all",
		"all":       "nft flush ruleset; ip rule flush proto 72; ip -6 rule flush proto 72",
		"addresses": "ip addr flush dev eth1",
		"address of node": "ip addr del 10.0.9.10/24 dev eth0; ip addr add 10.0.9.10/24 dev eth0; " +
			"ip route add default via 10.0.9.1",
	} {
		for back, restore := range map[string]func(){
			"ADD": func() {
				must(t, f.ADD(p))
				must(t, f.ADD(other))
			},
			"restored": func() {
				must(t, f.GC(p, p.request.Attachment, other.request.Attachment))
				for _, p := range []*pod{p, other} {
					_, err := f.restore(f.missing(p))
					must(t, err)
				}
			},
		} {
			t.Run(name+" "+back, func(t *testing.T) {
				nltest.Shell(t, f.node, lose)
				restore()
				for _, p := range []*pod{p, other} {
					must(t, f.CHECK(p))
					if l := f.missing(p); !l.None() {
						t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
					}
					for to, want := range map[string]string{otherAddr + ":8080": p.addr, internet + ":443": nodeAddr} {
						if seen, err := call(p.NS, "tcp4", to); err != nil || seen != want {
							t.Errorf("%s to %s: seen as %q; %v", p.Name, to, seen, err)
						}
					}
				}
			})
		}
	}
}

// TestRoutedGC: a collection deletes the pairs of invalid attachments, and the objects of an ENI whose link is gone. It
// deletes no objects of other ENIs or other programs.
func TestRoutedGC(t *testing.T) {
	f := newFabric(t)
	p, gone := f.routed("pod1", pod1Addr, dual), f.routed("pod2", pod2Addr, dual)
	other := f.routed("pod3", pod3Addr, dual)
	must(t, f.ADD(p))
	valid := nltest.Dump(t, f.node)
	must(t, f.ADD(gone))
	must(t, f.GC(p, p.request.Attachment))
	same(t, "GC of pod2", valid, nltest.Dump(t, f.node))
	must(t, f.CHECK(p))

	before := nltest.Dump(t, f.node)
	must(t, f.ADD(other))
	nltest.Shell(t, f.node, "ip rule add pref 1018 fwmark 0x1fe0/0x1fe0 table 3221242473") // rules of other programs
	nltest.Shell(t, f.node, "ip rule add pref 900 fwmark 0x1fe0/0x1fe0 table 3221242473 proto 72")
	others := nltest.Dump(t, f.node)
	must(t, f.GC(p, p.request.Attachment, other.request.Attachment))
	same(t, "GC of nothing", others, nltest.Dump(t, f.node))
	must(t, f.CHECK(other))
	nltest.Shell(t, f.node, "ip rule del pref 1018 table 3221242473; ip rule del pref 900")

	// pod3 has this ENI. The route is as if hostCidrs had added it to the ENI's table.
	nltest.Shell(t, f.node, "index=$(ip -o link show eth2 | cut -d: -f1); "+
		"ip route add throw 172.20.0.0/16 table $((3221225472 + index)) proto 72; ip link del eth2")
	must(t, f.GC(p, p.request.Attachment))
	same(t, "GC of an ENI that is gone", withoutLink(before, "eth2"), nltest.Dump(t, f.node))
	must(t, f.CHECK(p))
	must(t, f.DEL(p))
	f.bare()
	if text := f.nft("list", "ruleset"); text != "" {
		t.Errorf("left:\n%s", text)
	}
}

// withoutLink removes from a dump the lines that name a link.
func withoutLink(dump, link string) string {
	lines := slices.DeleteFunc(strings.Split(dump, "\n"), func(line string) bool {
		return slices.Contains(strings.Fields(line), link)
	})
	return strings.Join(lines, "\n")
}

// TestRoutedShared: while a routed pod runs, RemoveShared removes nothing. After the last pod, RemoveShared makes the
// node as it was before the first pod.
func TestRoutedShared(t *testing.T) {
	for name, more := range families {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			before := nltest.Dump(t, f.node)
			p := f.routed("pod1", pod1Addr, more...)
			must(t, f.ADD(p))
			if removed, err := f.node.RemoveShared(); removed || err != nil {
				t.Errorf("with a pod: removed %v; %v", removed, err)
			}
			must(t, f.CHECK(p))
			must(t, f.DEL(p))
			if removed, err := f.node.RemoveShared(); !removed || err != nil {
				t.Errorf("removed %v; %v", removed, err)
			}
			same(t, "RemoveShared", before, nltest.Dump(t, f.node))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
		})
	}
}

// TestRemoveRouted: the last routed pod is deleted, and other pods remain. Two rules stay: one that the other pods may
// use, and one that drops packets for deleted pods. Everything else is as before the first routed pod.
func TestRemoveRouted(t *testing.T) {
	for name, more := range families {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			other := f.pod("other", pod2Addr, more...)
			must(t, f.ADD(other))
			before := nltest.Dump(t, f.node)
			if removed, err := f.node.RemoveRouted(); removed || err != nil {
				t.Errorf("before the first: removed %v; %v", removed, err)
			}
			p := f.routed("pod1", pod1Addr, more...)
			must(t, f.ADD(p))
			if removed, err := f.node.RemoveRouted(); removed || err != nil {
				t.Errorf("with a pod: removed %v; %v", removed, err)
			}
			must(t, f.CHECK(p))
			must(t, f.DEL(p))
			if removed, err := f.node.RemoveRouted(); !removed || err != nil {
				t.Errorf("removed %v; %v", removed, err)
			}
			common := regexp.MustCompile(`(?m)^node: ip( -6)? rule add (not pref 1014|pref 1015 iif eth1) .*\n`)
			same(t, "RemoveRouted", before, common.ReplaceAllString(nltest.Dump(t, f.node), ""))
			must(t, f.CHECK(other))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
		})
	}
}

// TestRoutedLoss: Missing reports a routed pod whose pair is gone. Missing fails if the pod's path leads to the
// namespace of another pod.
func TestRoutedLoss(t *testing.T) {
	f := newFabric(t)
	p := f.routed("pod1", pod1Addr)
	must(t, f.ADD(p))
	must(t, f.node.DelPair(nl.Link{Name: p.veth()}))
	if l := f.missing(p); !l.Unpaired {
		t.Errorf("without its pair it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
	must(t, f.ADD(p))
	q := f.routed("pod2", pod2Addr)
	must(t, f.ADD(q))
	p.request.NetNS = q.request.NetNS
	if l, err := ptp.Missing(f.node, &p.request); err == nil {
		t.Errorf("by another pod's namespace: %v", l)
	}
}

// TestRoutedHostCIDRs: while pods of the ENI run, the configuration changes: hostCidrs gets the CIDRs of the VPC, and
// loses them again. After each change, the next ADD replaces the routes that the pods share.
func TestRoutedHostCIDRs(t *testing.T) {
	f := newFabric(t)
	must(t, f.ADD(f.routed("pod1", pod1Addr, dual)))
	for i, change := range []struct {
		cidrs []string
		throw bool
	}{{[]string{"10.0.0.0/16", "fd00::/32"}, true}, {nil, false}} {
		p := f.routed([]string{"pod2", "pod4"}[i], []string{pod2Addr, "10.0.1.60"}[i], dual)
		p.request.Config.HostCIDRs = change.cidrs
		must(t, p.request.Config.Validate())
		must(t, f.ADD(p))
		must(t, f.CHECK(p))
		routes := nltest.Shell(t, f.node, "ip route show table all dev eth1; ip -6 route show table all dev eth1; "+
			"ip route show table all type throw; ip -6 route show table all type throw")
		for _, dst := range []string{"10.0.0.0/16", "fd00::/32"} {
			if throw := strings.Contains(routes, "throw "+dst); throw != change.throw {
				t.Errorf("hostCidrs %v: throw %s is %v:\n%s", change.cidrs, dst, throw, routes)
			}
			if via := strings.Contains("\n"+routes, "\n"+dst+" via"); via == change.throw {
				t.Errorf("hostCidrs %v: by the ENI, %s is %v:\n%s", change.cidrs, dst, via, routes)
			}
		}
	}
}

// peers returns a function that adds routes through the ENI to a result of the ipam plugin.
func peers(cidrs ...string) func(*types100.Result) {
	return func(res *types100.Result) {
		for _, dst := range cidrs {
			res.Routes = append(res.Routes, &types.Route{Dst: cidr(dst), GW: res.IPs[0].Gateway})
		}
	}
}

// TestRoutedChanged: the configuration moves a destination from the node to the ENI while a pod of the ENI runs. The
// ADD of another pod changes the route that both pods share. Then CHECK accepts both pods, and neither misses a route.
// If the route is removed, both miss it.
func TestRoutedChanged(t *testing.T) {
	f := newFabric(t)
	older, newer := f.routed("pod1", pod1Addr, peers("10.8.0.0/16")), f.routed("pod2", pod2Addr, peers("10.8.0.0/16"))
	f.configured(older, func(c *ptp.Config) { c.HostCIDRs = []string{"10.8.0.0/16"} })
	must(t, f.ADD(older))
	must(t, f.ADD(newer))
	for _, p := range []*pod{older, newer} {
		must(t, f.CHECK(p))
		if l := f.missing(p); !l.None() {
			t.Errorf("%s misses %v, %v, %v", p.Name, l.Node, l.Pod, l.Changed)
		}
	}
	nltest.Shell(t, f.node, "ip route flush 10.8.0.0/16 table all")
	for _, p := range []*pod{older, newer} {
		if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), "10.8.0.0/16") {
			t.Errorf("CHECK of %s without the route: %v", p.Name, err)
		}
		if l := f.missing(p); len(l.Node) != 1 || !l.Serious() {
			t.Errorf("without the route, %s misses %v", p.Name, l.Node)
		}
	}
}
