// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package repair_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/repair"
)

// If these environment variables are set, the test binary runs cni-tool repair.
const (
	ofConfig = "REPAIR_CONFIG"
	ofKept   = "REPAIR_KEPT"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(ofConfig); config != "" {
		lease.KeptIn = []string{os.Getenv(ofKept)}
		if _, err := repair.Node(context.Background(), conf.Load(config)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(nltest.Guard{M: m}.Run())
}

// egresses are configurations with one egress. The destinations of "second" include most addresses in the destinations
// of "first", but the two lists have no prefix in common. Unlike "first", "third" has a gateway for each family.
// "fifth" has only the IPv6 gateway of "third".
var egresses = map[string]string{
	"first": `"gateways": ["172.20.0.77"],
		"destinations": ["203.0.113.0/24", "198.51.100.0/24", "10.8.0.0/13", "192.0.2.0/25"],
		"except": ["10.9.0.0/16", "198.51.100.64/26"]`,
	"second": `"gateways": ["172.20.0.78"],
		"destinations": ["0.0.0.0/0", "10.8.1.0/24", "203.0.113.0/25", "198.51.100.64/26"],
		"except": ["203.0.113.128/25", "192.0.2.0/24"], "routerCidrs": ["10.0.7.0/24"]`,
	"third": `"gateways": ["172.20.0.77", "fd00:20::77"], "destinations": ["203.0.113.0/24", "::/0", "3fff:1::/32"],
		"except": ["2600:1f18::/56", "3fff:1:2::/48"], "clients": ["10.0.0.0/8", "2600:1f18::/56"]`,
	"fourth": `"gateways": ["172.20.0.77", "fd00:20::78"],
		"destinations": ["203.0.113.0/24", "3fff:1::/44", "3fff:1:2::/48"],
		"clients": ["10.0.0.0/8", "2600:1f18::/56"]`,
	"fifth": `"gateways": ["fd00:20::77"], "destinations": ["::/0", "3fff:1::/32"],
		"except": ["2600:1f18::/56", "3fff:1:2::/48"], "clients": ["2600:1f18::/56"]`,
}

// changes are pairs of configurations: before and after a change.
var changes = [][2]string{{"first", "second"}, {"second", "first"}, {"first", "third"}, {"third", "first"},
	{"fifth", "third"}, {"third", "fourth"}, {"fourth", "third"}}

// probes are addresses in, between and outside the destinations of all egresses.
var probes = []netip.Addr{
	netip.MustParseAddr("203.0.113.5"), netip.MustParseAddr("203.0.113.200"), netip.MustParseAddr("198.51.100.1"),
	netip.MustParseAddr("198.51.100.65"), netip.MustParseAddr("10.8.1.5"), netip.MustParseAddr("10.8.2.5"),
	netip.MustParseAddr("10.9.1.1"), netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.200"),
	netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("10.0.1.9"),
	netip.MustParseAddr("172.20.0.77"), netip.MustParseAddr("172.20.0.78"), netip.MustParseAddr("172.20.0.10"),
	netip.MustParseAddr("3fff:1::1"), netip.MustParseAddr("3fff:1:2::1"), netip.MustParseAddr("2a00::1"),
	netip.MustParseAddr("2600:1f18::9"), netip.MustParseAddr("fd00:20::77"), netip.MustParseAddr("fd00:20::78"),
}

// own are the addresses of the pod, with their subnets.
var own = []netip.Prefix{netip.MustParsePrefix("10.0.1.5/24"), netip.MustParsePrefix("2600:1f18:0:1::5/64")}

// A node is a node with one pod. Another plugin has given the pod its addresses.
type node struct {
	*testing.T
	ns, pod    *nl.NS
	path, kept string // path of the pod's namespace, and the directory of the runtime's file about the pod
	config     string // the path of the conflist
	role       string // the key that makes the pod a client ("namespaces") or a router ("routers")
}

func newNode(t *testing.T, role string) *node {
	nltest.Need(t, "root", "nftables", "fou")
	n := &node{T: t, role: role, kept: t.TempDir(), config: filepath.Join(t.TempDir(), "10.conflist")}
	n.ns, _ = nltest.NS(t, "node")
	were := lease.KeptIn
	lease.KeptIn = []string{n.kept}
	t.Cleanup(func() { lease.KeptIn = were })
	t.Setenv("CNI_IPVLAN_VPC_STATE_DIR", t.TempDir())
	return n
}

// start gives the node a new pod, with the objects that the other plugin makes in the pod.
func (n *node) start() {
	n.Helper()
	n.pod, n.path = nltest.NS(n.T, "pod")
	w := nl.Wiring{{NS: n.pod, Object: nl.Veth{Name: "eth0", Peer: "far", PeerNS: n.pod, MTU: 9001}},
		{NS: n.pod, Object: nl.Up{Dev: "far"}},
		{NS: n.pod, Object: nl.Sysctl{Key: "net/ipv6/conf/eth0/disable_ipv6", Value: "0"}},
		// Distributions and runtimes set these sysctls named default. Each link that the egress makes later begins with
		// their values.
		{NS: n.pod, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "2"}},
		{NS: n.pod, Object: nl.Sysctl{Key: "net/ipv6/conf/default/disable_ipv6", Value: "1"}}}
	for _, p := range own {
		w = append(w, nl.Step{NS: n.pod, Object: nl.Addr{Prefix: p, Dev: "eth0", NoDAD: true}})
	}
	for _, via := range gateways {
		w = append(w, nl.Step{NS: n.pod, Object: nl.Route{Dst: nl.FamilyOf(via).Everywhere(), Via: via, Dev: "eth0"}})
	}
	n.must(w.Add())
}

// gateways are the routers of the pod's subnets.
var gateways = []netip.Addr{netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("2600:1f18:0:1::1")}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

// configure writes the conflist. The plugin egress comes after a plugin of another project.
func (n *node) configure(name string) {
	n.Helper()
	n.must(os.WriteFile(n.config, fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "ptp"},
		{"type": "cni-ipvlan-vpc-k8s-egress", "capabilities": {"io.kubernetes.cri.pod-annotations": true},
		"egress": {"partner": {%s, %q: ["default"], "selectable": ["shop"]}}}]}`, egresses[name], n.role), 0o600))
}

// request returns the pod's request with the present configuration.
func (n *node) request() *plugin.Request[egress.Config] {
	n.Helper()
	all, err := conf.Load(n.config).Egress()
	n.must(err)
	result := &types100.Result{CNIVersion: "1.0.0", Interfaces: []*types100.Interface{{Name: "vethpod"},
		{Name: "eth0", Sandbox: n.path}}}
	for i, p := range own {
		result.IPs = append(result.IPs, &types100.IPConfig{Interface: new(1), Address: net.IPNet{IP: p.Addr().AsSlice(),
			Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Gateway: gateways[i].AsSlice()})
		result.Routes = append(result.Routes, &types.Route{Dst: *ipNet(nl.FamilyOf(p.Addr()).Everywhere())})
	}
	return &plugin.Request[egress.Config]{Network: "pods", NetNS: n.path, Config: all[0].Config, Prev: result,
		Attachment: registry.Attachment{ContainerID: "c1", IfName: "eth0"},
		Pod:        plugin.Pod{Namespace: "default", Name: "web"}}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// add executes the ADD of the pod, and then writes the file that the runtime keeps.
func (n *node) add() {
	n.Helper()
	r := n.request()
	n.must(n.ns.Do(func() error { _, err := egress.Commands().Add(n.Context(), r); return err }))
	n.keep(nil)
}

// keep writes the file that the runtime keeps. more has further keys of the file.
func (n *node) keep(more map[string]any) {
	n.Helper()
	r := n.request()
	text, err := os.ReadFile(n.config)
	n.must(err)
	all := map[string]any{"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "pods",
		"netns": n.path, "cniArgs": [][2]string{{"K8S_POD_NAMESPACE", "default"}, {"K8S_POD_NAME", "web"}},
		"config": text, "result": r.Prev}
	maps.Copy(all, more)
	kept, err := json.Marshal(all)
	n.must(err)
	n.must(os.WriteFile(filepath.Join(n.kept, "pods-c1-eth0"), kept, 0o600))
}

// ends executes the DEL of the pod, and checks that no object of the egress remains.
func (n *node) ends() {
	n.Helper()
	n.must(n.ns.Do(func() error { return egress.Commands().Del(n.Context(), n.request()) }))
	for line := range strings.Lines(nltest.Dump(n.T, n.pod)) {
		if strings.Contains(line, "egress") || strings.Contains(line, "table 7") || strings.Contains(line, "lookup 7") {
			n.Errorf("DEL left: %s", line)
		}
	}
}

// within returns the node for use in a subtest.
func (n *node) within(t *testing.T) *node {
	inner := *n
	inner.T = t
	return &inner
}

func (n *node) check() error {
	n.Helper()
	return n.ns.Do(func() error { return egress.Commands().Check(n.Context(), n.request()) })
}

// repair runs cni-tool repair, and returns the changes that it reports.
func (n *node) repair() []string {
	n.Helper()
	var did []string
	n.must(n.ns.Do(func() (err error) { did, err = repair.Node(n.Context(), conf.Load(n.config)); return err }))
	return did
}

// ways returns, for each address in probes, the link through which the pod sends packets to this address.
func (n *node) ways() map[string]string {
	n.Helper()
	all := map[string]string{}
	for _, to := range probes {
		from := own[0].Addr()
		if to.Is6() {
			from = own[1].Addr()
		}
		dev, err := ask.Leaves(n.pod, from, to)
		if errors.Is(err, syscall.EHOSTUNREACH) {
			dev = "nowhere"
		} else {
			n.must(err)
		}
		all[to.String()] = dev
	}
	return all
}

// made starts a pod, and executes its ADD with a configuration. It returns the pod's ways, and the dump of all its
// objects.
func (n *node) made(name string) (ways map[string]string, dump string) {
	n.Helper()
	n.start()
	n.configure(name)
	n.add()
	return n.ways(), n.dump()
}

// dump returns the objects of the pod, without the throw routes to the pod's own subnets.
func (n *node) dump() (lines string) {
	n.Helper()
	for line := range strings.Lines(nltest.Dump(n.T, n.pod)) {
		if !strings.Contains(line, "throw 10.0.1.0/24") && !strings.Contains(line, "throw 2600:1f18:0:1::/64") {
			lines += line
		}
	}
	return lines + n.sysctls()
}

// sysctls returns the pod's sysctls for each family that has a tunnel. The sysctls of a family without a tunnel have no
// effect.
func (n *node) sysctls() (lines string) {
	n.Helper()
	for _, family := range []struct{ link, dir, keys string }{
		{egress.Link4, "net/ipv4/", "ip_forward fwmark_reflect conf/all/rp_filter conf/default/rp_filter " +
			"conf/eth0/rp_filter conf/egress4/rp_filter"},
		{egress.Link6, "net/ipv6/", "conf/all/forwarding fwmark_reflect conf/egress6/disable_ipv6"},
	} {
		if _, err := n.pod.LinkByName(family.link); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, key := range strings.Fields(family.keys) {
			value, err := n.pod.Sysctl(family.dir + key)
			n.must(err)
			lines += key + " = " + value + "\n"
		}
	}
	return lines
}

// TestRenewed: while a client or a router runs, the configuration changes. Then repair must give the pod the objects
// that an ADD would make. A second repair must do nothing. CHECK and DEL must work.
func TestRenewed(t *testing.T) {
	for _, role := range []string{"namespaces", "routers"} {
		for _, c := range changes {
			t.Run(fmt.Sprint(role, " ", c), func(t *testing.T) {
				n := newNode(t, role)
				_, want := n.made(c[1])
				n.made(c[0])
				if did := n.repair(); len(did) > 0 {
					t.Errorf("without a change, repair did %v", did)
				}
				n.configure(c[1])
				if did := n.repair(); !cmp.Equal(did, []string{"egress of default/web"}) {
					t.Errorf("repair did %v", did)
				}
				if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(n.dump(), "\n")); d != "" {
					t.Errorf("-as an ADD makes it +as repair makes it\n%s", d)
				}
				n.must(n.check())
				if did := n.repair(); len(did) > 0 {
					t.Errorf("the second repair did %v", did)
				}
				n.ends()
			})
		}
	}
}

// TestKillRenewal kills repair after each system call. Then packets to each address must take the way of the old
// configuration or of the new one, and CHECK must succeed. If repair runs again, it must finish the change. DEL must
// remove everything, with or without this second repair.
func TestKillRenewal(t *testing.T) {
	for role, few := range map[string][][2]string{"namespaces": changes[:6], "routers": changes[2:5]} {
		for _, c := range few {
			t.Run(fmt.Sprint(role, " ", c), func(t *testing.T) {
				n := newNode(t, role)
				after, want := n.made(c[1])
				points := trace.Everywhere(t, "repair", func(t *testing.T, tr *trace.Trace) {
					n := n.within(t)
					before, _ := n.made(c[0])
					n.configure(c[1])
					if status := n.run(tr); status.Exited() && status.ExitStatus() != 0 {
						t.Fatalf("status %d", status.ExitStatus())
					}
					for to, way := range n.ways() {
						if way != before[to] && way != after[to] {
							t.Errorf("killed at %d: packets to %s leave by %q: want %q or %q", tr.Kill, to, way,
								before[to], after[to])
						}
					}
					if tr.Kill/(*trace.Step)%3 > 0 {
						n.repair()
						if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(n.dump(), "\n")); d != "" {
							t.Errorf("killed at %d: -as an ADD makes it +after the next repair\n%s", tr.Kill, d)
						}
					}
					n.ends()
				})
				t.Logf("repair was killed at %d points", points)
			})
		}
	}
}

// run runs repair in a process that the trace kills.
func (n *node) run(tr *trace.Trace) (status syscall.WaitStatus) {
	n.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), ofConfig+"="+n.config, ofKept+"="+n.kept)
	n.must(n.ns.Do(func() (err error) { status, err = tr.Run(c); return err }))
	return status
}

// TestRenewalRefused: the configuration has changed in a way that repair may not apply to a running pod. repair must
// report this, and must not change the pod. repair must also not change a pod that has ended, or a pod about which the
// runtime has no file.
func TestRenewalRefused(t *testing.T) {
	n := newNode(t, "namespaces")
	n.made("first")
	made := n.dump()
	for what, c := range map[string]struct {
		change func()
		means  string
	}{
		"the role is gone": {func() { n.role = "routers"; n.configure("second") },
			"the configuration now gives the pod another role: the pod is client, and would become router"},
		"the annotation": {func() {
			n.configure("second")
			asks := map[string]string{egress.Annotation: "other"}
			n.keep(map[string]any{"capabilityArgs": map[string]any{"io.kubernetes.cri.pod-annotations": asks}})
		}, `annotation cni-ipvlan-vpc-k8s/egress: no egress has the name "other"`},
		"the port": {func() {
			n.configure("second")
			text, err := os.ReadFile(n.config)
			n.must(err)
			other := strings.Replace(string(text), `"egress":`, `"egressPort": 4789, "egress":`, 1)
			n.must(os.WriteFile(n.config, []byte(other), 0o600))
		}, "the pod's tunnels use UDP port 5555, and egressPort is 4789"},
	} {
		t.Run(what, func(t *testing.T) {
			c.change()
			var found []repair.Outdated
			n.must(n.ns.Do(func() error {
				all, err := conf.Load(n.config).Egress()
				n.must(err)
				found = repair.OutdatedBy(n.ns, all[0])
				_, _ = repair.Node(t.Context(), conf.Load(n.config)) // it must change nothing
				return nil
			}))
			if len(found) != 1 || found[0].Err == nil || !strings.Contains(found[0].String(), c.means) {
				t.Errorf("got %v, want %s", found, c.means)
			}
			if d := cmp.Diff(made, n.dump()); d != "" {
				t.Errorf("repair has changed the pod: %s", d)
			}
		})
		n.role = "namespaces"
		n.configure("first")
		n.keep(nil)
	}
	n.configure("second")
	n.must(os.Remove(filepath.Join(n.kept, "pods-c1-eth0")))
	if did := n.repair(); len(did) > 0 {
		t.Errorf("of an unknown pod, repair did %v", did)
	}
	n.keep(map[string]any{"netns": n.path + "-gone"})
	if did := n.repair(); len(did) > 0 {
		t.Errorf("of a pod that has ended, repair did %v", did)
	}
	ended := *n.request().Prev
	ended.IPs = []*types100.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 0, 1, 99), Mask: net.CIDRMask(24, 32)}}}
	n.keep(map[string]any{"result": ended})
	if did := n.repair(); len(did) > 0 {
		t.Errorf("of a pod that has ended, and whose namespace's path is that of another pod now, repair did %v", did)
	}
	n.keep(nil)
	if did := n.repair(); len(did) == 0 {
		t.Error("of the pod that has its address, repair did nothing")
	}
}

// TestRenewalOfLoss: a client or a router has lost objects. CHECK and doctor must find the loss, and repair must put
// the objects back.
func TestRenewalOfLoss(t *testing.T) {
	both := []string{"namespaces", "routers"}
	for lost, o := range map[string]struct {
		roles []string
		lose  func(*nl.NS) error
	}{
		"the table":           {both, nl.Table{Family: "inet", Name: egress.Table}.Del},
		"the tunnel":          {both, nl.Tunnel{Name: egress.Link4}.Del},
		"the IPv6 tunnel":     {both, nl.Tunnel{Name: egress.Link6}.Del},
		"the UDP port":        {both, nl.FOU{Local: own[0].Addr(), Port: egress.DefaultPort}.Del},
		"a rule":              {both, nl.Rule{Pref: 1536, Family: nl.IPv4, Protocol: nl.RouteProtocol}.Del},
		"the link is down":    {both, func(ns *nl.NS) error { return ns.SetDown(egress.Link4) }},
		"the IPv6 link":       {both, func(ns *nl.NS) error { return ns.SetDown(egress.Link6) }},
		"rp_filter":           {both, nl.Sysctl{Key: "net/ipv4/conf/egress4/rp_filter", Value: "2"}.Add},
		"IPv6 of the tunnel":  {both, nl.Sysctl{Key: "net/ipv6/conf/egress6/disable_ipv6", Value: "1"}.Add},
		"the forwarding":      {both[1:], nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "0"}.Add},
		"the IPv6 forwarding": {both[1:], nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "0"}.Add},
		"the marks of errors": {both[1:], nl.Sysctl{Key: "net/ipv6/fwmark_reflect", Value: "0"}.Add},
	} {
		for _, role := range o.roles {
			t.Run(role+" "+lost, func(t *testing.T) {
				n := newNode(t, role)
				_, want := n.made("third")
				n.must(o.lose(n.pod))
				if err := n.check(); err == nil {
					t.Error("CHECK finds nothing")
				}
				if err := egress.Lost(n.pod, "eth0"); !errors.Is(err, egress.ErrLost) {
					t.Errorf("doctor finds %v", err)
				}
				if did := n.repair(); len(did) != 1 {
					t.Errorf("repair did %v", did)
				}
				if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(n.dump(), "\n")); d != "" {
					t.Errorf("-before +after\n%s", d)
				}
				n.must(errors.Join(n.check(), egress.Lost(n.pod, "eth0")))
			})
		}
	}
}

// TestRenewalOfDestination checks a client that has lost both routes to a destination. The remaining objects are
// consistent, so egress.Lost finds nothing. But doctor also compares the client with the configuration (OutdatedBy).
func TestRenewalOfDestination(t *testing.T) {
	n := newNode(t, "namespaces")
	_, want := n.made("first")
	routes, err := n.pod.Routes(nl.RouteFilter{Table: egress.TableOut, Protocol: nl.RouteProtocol})
	n.must(err)
	for _, r := range routes {
		if r.Dst == netip.MustParsePrefix("203.0.113.0/24") {
			n.must(r.Del(n.pod))
		}
	}
	if err := n.check(); err == nil {
		t.Error("CHECK finds nothing")
	}
	n.must(egress.Lost(n.pod, "eth0"))
	networks, err := conf.Load(n.config).Egress()
	n.must(err)
	if all := repair.OutdatedBy(n.ns, networks[0]); len(all) != 1 || all[0].Err != nil {
		t.Errorf("doctor finds %v", all)
	}
	if did := n.repair(); len(did) != 1 {
		t.Errorf("repair did %v", did)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(n.dump(), "\n")); d != "" {
		t.Errorf("-before +after\n%s", d)
	}
	n.must(n.check())
}

// TestRenewalOfOneRoute checks a client that has lost one route: a route to a gateway, or a route that refuses packets.
// doctor must find the loss, and repair must put the route back.
func TestRenewalOfOneRoute(t *testing.T) {
	n := newNode(t, "namespaces")
	_, want := n.made("third")
	routes, err := n.pod.Routes(nl.RouteFilter{Table: egress.TableOut, Protocol: nl.RouteProtocol})
	n.must(err)
	networks, err := conf.Load(n.config).Egress()
	n.must(err)
	for _, r := range routes {
		if r.Type == "throw" {
			continue
		}
		t.Run(r.String(), func(t *testing.T) {
			n.must(r.Del(n.pod))
			if all := repair.OutdatedBy(n.ns, networks[0]); len(all) != 1 || all[0].Err != nil {
				t.Errorf("doctor finds %v", all)
			}
			if did := n.repair(); len(did) != 1 {
				t.Errorf("repair did %v", did)
			}
			if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(n.dump(), "\n")); d != "" {
				t.Errorf("-before +after\n%s", d)
			}
		})
	}
}
