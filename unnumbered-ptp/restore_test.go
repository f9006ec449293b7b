// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// offAndOn disables IPv6 on the node and enables it again. Then it adds the node's own address, as a network manager
// does.
func (f *fabric) offAndOn() {
	f.t.Helper()
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"})
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "0"},
		nl.Addr{Prefix: netip.MustParsePrefix(sixth(nodeAddr) + "/64"), Dev: "eth0", NoDAD: true},
		nl.Route{Dst: netip.MustParsePrefix("::/0"), Via: netip.MustParseAddr(sixth("10.0.9.1")), Dev: "eth0"})
}

// only6 adds IPv6 to a result of the ipam plugin, and then removes IPv4 from this result.
func only6(res *types100.Result) {
	dual(res)
	res.IPs, res.Routes = res.IPs[1:], res.Routes[1:]
}

// missing returns the objects that Missing finds missing for a pod.
func (f *fabric) missing(p *pod) (l ptp.Loss) {
	f.t.Helper()
	must(f.t, f.node.Do(func() (err error) { l, err = ptp.Missing(f.node, &p.request); return err }))
	return l
}

// misses adds a pod, and runs the command lose in the pod's namespace. CHECK and Missing must report want.
func (f *fabric) misses(p *pod, lose, want string) {
	f.t.Helper()
	must(f.t, f.ADD(p))
	must(f.t, f.CHECK(p))
	nltest.Shell(f.t, p.NS, lose)
	l := f.missing(p)
	var named []string
	for _, fault := range l.Pod {
		named = append(named, fault.Error())
	}
	if got := strings.Join(named, "\n"); !strings.Contains(got, want) || len(l.Node) > 0 {
		f.t.Errorf("it misses on the node %v, in the pod\n%s", l.Node, got)
	}
	if f.CHECK(p) == nil {
		f.t.Error("CHECK is content")
	}
}

// restore restores the objects that are missing.
func (f *fabric) restore(l ptp.Loss) (w nl.Wiring, err error) {
	return w, f.node.Do(func() error { w, err = ptp.Restore(f.node, l); return err })
}

// TestRestore removes objects of a pod from the node, as other programs and the kernel do. CHECK and Missing report
// each loss, and Restore puts the objects back. Then calls of a Service succeed in each family, and nothing is missing.
func TestRestore(t *testing.T) {
	for _, loop := range loopsOfAll {
		for name, family := range map[string]func(*types100.Result){"IPv4": nil, "dual": dual, "IPv6 alone": only6} {
			t.Run(loop+" "+name, func(t *testing.T) { testRestore(t, loop, family) })
		}
	}
}

func testRestore(t *testing.T, loop string, family func(*types100.Result)) {
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
	serve(t, f.other, ":8080")
	p := f.pod("pod1", pod1Addr)
	if family != nil {
		p = f.pod("pod3", pod3Addr, family)
	}
	p = f.configured(p, func(c *ptp.Config) { atNode(c); c.ServiceLoop = loop })
	other := f.pod("pod2", pod2Addr)
	must(t, f.ADD(p))
	must(t, f.ADD(other))
	if loop != "none" {
		p.request.Config.ServiceLoop = "" // without the key, CHECK accepts any loop
	}
	veth := ptp.VethName("net", p.request.Attachment)
	served := func() {
		t.Helper()
		for _, c := range p.request.Prev.IPs {
			network := "tcp4"
			if c.Address.IP.To4() == nil {
				network = "tcp6"
			}
			_, err := call(p.NS, network, dialled(network, "172.20.0.10:80"))
			must(t, err)
		}
	}
	state := func() string { // sorted: rules of one priority may be in any order
		lines := strings.Split(nltest.Dump(t, f.node, p.NS), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := state()
	served()
	if l := f.missing(p); !l.None() {
		t.Fatalf("of what is there it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
	for name, lose := range map[string]func(){
		"IPv6 off and on": f.offAndOn,
		"down and up": func() {
			nltest.Shell(t, f.node, "ip link set "+veth+" down")
			nltest.Shell(t, f.node, "ip link set "+veth+" up")
		},
		"down": func() { nltest.Shell(t, f.node, "ip link set "+veth+" down") },
		"routes": func() {
			nltest.Shell(t, f.node, "ip route flush dev "+veth+" table all")
			nltest.Shell(t, f.node, "ip -6 route flush dev "+veth+" table all proto 72")
		},
		"rules":      func() { must(t, f.node.DelRules(veth)) },
		"neighbours": func() { nltest.Shell(t, f.node, "ip neigh flush dev "+veth+" nud permanent") },
		"all of ours": func() {
			must(t, f.node.DelRules(veth))
			nltest.Shell(t, f.node, "ip link set "+veth+" down")
			nltest.Shell(t, f.node, "ip link set "+veth+" up")
		},
	} {
		lose()
		if state() == before {
			continue // the pod does not have this object
		}
		if f.CHECK(p) == nil {
			t.Errorf("%s: CHECK is content", name)
		}
		l := f.missing(p)
		if !l.Serious() || len(l.Pod) > 0 || l.Changed != nil {
			t.Errorf("%s: it misses %v, %v, %v", name, l.Node, l.Pod, l.Changed)
		}
		done, err := f.restore(l)
		if err != nil || len(done) != len(l.Node) {
			t.Errorf("%s: restored %v; %v", name, done, err)
		}
		same(t, name, before, state())
		if l := f.missing(p); !l.None() {
			t.Errorf("%s: after that it misses %v, %v, %v", name, l.Node, l.Pod, l.Changed)
		}
		must(t, f.CHECK(p))
		served()
	}
}

// TestRestoreNot: Restore restores nothing of IPv6 while IPv6 is disabled. It does nothing if the pod's path leads to
// the namespace of another pod.
func TestRestoreNot(t *testing.T) {
	f := newFabric(t)
	p, q := f.pod("pod1", pod1Addr, dual), f.pod("pod2", pod2Addr, dual)
	must(t, f.ADD(p))
	must(t, f.ADD(q))
	f.add(f.node, nl.Sysctl{Key: "net/ipv6/conf/all/disable_ipv6", Value: "1"})
	if l := f.missing(p); len(l.Node) > 0 || l.Changed == nil || !strings.Contains(l.Changed.Error(),
		"eth0 has no IPv6 address") {
		t.Errorf("without IPv6: %v, %v", l.Node, l.Changed)
	}
	f.offAndOn()
	p.request.NetNS = q.request.NetNS
	if l, err := ptp.Missing(f.node, &p.request); err == nil || !strings.Contains(err.Error(),
		"is not in the namespace") {
		t.Errorf("by another pod's namespace: %v, %v", l, err)
	}
}

// TestCheckPod changes the pod's own namespace. CHECK and Missing name each change. Restore repairs nothing in this
// namespace.
func TestCheckPod(t *testing.T) {
	for name, x := range map[string]struct{ lose, want string }{
		"default route": {"ip route del default", "ip route add default via 10.0.9.10 dev eth1"},
		"another default route": {"ip route replace default via 10.0.1.1 dev eth0 onlink",
			"ip route add default via 10.0.9.10 dev eth1"},
		"route to the node":      {"ip route del 10.0.9.10", "ip route add 10.0.9.10/32 dev eth1"},
		"IPv6 route to the node": {"ip -6 route del fd00:0:9::10", "ip -6 route add fd00:0:9::10/128 dev eth1"},
		"neighbour":              {"ip neigh del 10.0.9.10 dev eth1", "ip neigh add 10.0.9.10"},
		"metadata":               {"ip route del prohibit 169.254.169.254", "ip route add prohibit 169.254.169.254/32"},
		"metadata of IPv6":       {"ip -6 route del fd00:ec2::254", "ip -6 route add prohibit fd00:ec2::254/128"},
		"ports": {"sysctl -qw \"net.ipv4.ip_local_port_range=49152 65535\"",
			"sysctl -w net.ipv4.ip_local_port_range"},
		"reserved ports": {"sysctl -qw net.ipv4.ip_local_reserved_ports=1 " +
			"\"net.ipv4.ip_local_port_range=1024 65535\"", "sysctl -w net.ipv4.ip_local_reserved_ports"},
		"loop":            {"tc filter del dev eth1 ingress", "tc qdisc add dev eth1"},
		"end of the pair": {"ip link set eth1 down", "ip link set eth1 up"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) {
				c.BlockInstanceMetadata = new(true)
			})
			f.misses(p, x.lose, x.want)
		})
	}
}

// TestCheckPodChosen: a pod's configuration has sysctls for local ports. The runtime writes these sysctls after the
// ADD, so they replace our list. CHECK succeeds as long as the pod cannot use the loop's ports.
func TestCheckPodChosen(t *testing.T) {
	f, p := preparedTable(t)
	must(t, f.ADD(p))
	nltest.Shell(t, p.NS, "sysctl -qw net.ipv4.ip_local_reserved_ports=30080 "+
		`"net.ipv4.ip_local_port_range=10000 49151"`)
	must(t, f.CHECK(p))
	if l := f.missing(p); !l.None() {
		t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
	}
}
