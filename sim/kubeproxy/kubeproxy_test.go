// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package kubeproxy_test

import (
	"errors"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/kubeproxy"
)

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

// dumps has the shell command that prints the rules of both families, by mode.
var dumps = map[kubeproxy.Mode]string{
	kubeproxy.IPTables: "iptables-save && ip6tables-save",
	kubeproxy.NFTables: "nft list ruleset",
}

func dump(t *testing.T, n *nl.NS, m kubeproxy.Mode) string {
	t.Helper()
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("sh", "-c", dumps[m]).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestRecordedRules loads the rules of each mode, and checks that the kernel has a rule for each part of each Service.
func TestRecordedRules(t *testing.T) {
	for _, m := range kubeproxy.Modes {
		t.Run(string(m), func(t *testing.T) {
			need(t)
			n, _ := nltest.NS(t, "node")
			unload := load(t, n, m)
			rules := dump(t, n, m)
			for _, s := range kubeproxy.Services() {
				for _, want := range about(s) {
					if !strings.Contains(rules, want) {
						t.Errorf("service %s: nothing about %q in the rules", s.Name, want)
					}
				}
			}
			for _, was := range []string{"192.0.2.", "2001:db8:"} {
				if strings.Contains(rules, was) {
					t.Errorf("there are recorded addresses left in the rules: %s", was)
				}
			}
			if v, err := n.Sysctl("net/netfilter/nf_conntrack_tcp_timeout_close_wait"); v != "3600" {
				t.Errorf("nf_conntrack_tcp_timeout_close_wait is %s, %v", v, err)
			}
			unload()
			if left := dump(t, n, m); strings.Contains(left, "KUBE") || strings.Contains(left, "chain") {
				t.Errorf("left after unload:\n%s", left)
			}
		})
	}
}

func about(s kubeproxy.Service) []string {
	words := []string{s.ClusterIP.V4.String(), s.ClusterIP.V6.String(), "default/" + s.Name}
	for _, b := range s.Backends {
		words = append(words, scenario[b].V4.String(), scenario[b].V6.String())
	}
	if s.NodePort != 0 {
		words = append(words, strconv.Itoa(int(s.NodePort)))
	}
	return words
}

// need skips a test if a program that loads rules is missing. In CI, it fails the test instead.
func need(t *testing.T) {
	t.Helper()
	for _, prog := range []string{"nft", "iptables-restore", "ip6tables-restore"} {
		_, err := exec.LookPath(prog)
		switch {
		case err == nil:
		case os.Getenv("CI") != "":
			t.Fatal(err)
		default:
			t.Skipf("%v: install iptables and nftables", err)
		}
	}
}

func load(t *testing.T, n *nl.NS, m kubeproxy.Mode) (unload func()) {
	t.Helper()
	off, err := kubeproxy.Load(n, m, scenario)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := off(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoadKeepsOthers loads kube-proxy's rules into chains that already have other rules. The other rules must stay,
// and must come after kube-proxy's rules.
func TestLoadKeepsOthers(t *testing.T) {
	need(t)
	n, _ := nltest.NS(t, "node")
	const mine = "-A PREROUTING -j PORTMAP"
	err := n.Do(func() error {
		return exec.Command("sh", "-c",
			"iptables -P FORWARD DROP && iptables -t nat -N PORTMAP && iptables -t nat "+mine).Run()
	})
	if err != nil {
		t.Fatal(err)
	}
	unload := load(t, n, kubeproxy.IPTables)
	rules := dump(t, n, kubeproxy.IPTables)
	if its := strings.Index(rules, "-j KUBE-SERVICES"); its < 0 || its > strings.Index(rules, mine) {
		t.Errorf("kube-proxy's rules are not first:\n%s", rules)
	}
	unload()
	for _, want := range []string{mine, ":FORWARD DROP"} {
		if rules := dump(t, n, kubeproxy.IPTables); !strings.Contains(rules, want) {
			t.Errorf("%q is gone:\n%s", want, rules)
		}
	}
}

// TestLoadFamilies checks that Load loads only the rules for the node's families. It also checks that the error for a
// missing address names the host without this address.
func TestLoadFamilies(t *testing.T) {
	need(t)
	n, _ := nltest.NS(t, "node")
	only4 := kubeproxy.Scenario{}
	for h, a := range scenario {
		only4[h] = kubeproxy.Addrs{V4: a.V4}
	}
	unload, err := kubeproxy.Load(n, kubeproxy.NFTables, only4)
	if err != nil {
		t.Fatal(err)
	}
	rules := dump(t, n, kubeproxy.NFTables)
	if !strings.Contains(rules, "table ip kube-proxy") || strings.Contains(rules, "table ip6") {
		t.Errorf("want the table of IPv4 alone:\n%s", rules)
	}
	if err := unload(); err != nil {
		t.Error(err)
	}
	lacking := maps.Clone(scenario)
	lacking[kubeproxy.Sibling] = only4[kubeproxy.Sibling]
	for what, s := range map[string]kubeproxy.Scenario{
		`"sibling" has no address of family v6`: lacking,
		`"node" has no address`:                 {},
	} {
		if _, err := kubeproxy.Load(n, kubeproxy.NFTables, s); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("got %v, want %s", err, what)
		}
	}
}

// TestLoadForgets sends a datagram to a Service before Load. After Load, a datagram from the same source port must
// reach a backend.
func TestLoadForgets(t *testing.T) {
	need(t)
	f := newFabric(t)
	node := f[kubeproxy.Node]
	tracks := func() error {
		return exec.Command("nft",
			"table inet tracks { chain forward { type filter hook forward priority 0; ct state new accept; }; }").Run()
	}
	if err := node.Do(tracks); err != nil {
		t.Fatal(err)
	}
	services := kubeproxy.Services()
	s := services[slices.IndexFunc(services, func(s kubeproxy.Service) bool { return len(s.Backends) > 1 })]
	var conn net.Conn
	err := f[kubeproxy.Client].Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(s.ClusterIP.V4, s.Port).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "too early")
	for end := time.Now().Add(time.Minute); nltest.Tracked(t, node) == 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if nltest.Tracked(t, node) == 0 {
		t.Fatal("the node does not track the datagram")
	}
	unload := load(t, node, kubeproxy.NFTables)
	defer unload()
	io.WriteString(conn, "who am I?")
	conn.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := conn.Read(make([]byte, 99)); err != nil {
		t.Errorf("%s: %v", s.Name, err)
	}
}

// TestPaths calls each ClusterIP from a pod and from the node. It calls each NodePort from outside the node and from a
// pod. It also checks that unload empties the connection tracker.
func TestPaths(t *testing.T) {
	need(t)
	f := newFabric(t)
	for _, m := range kubeproxy.Modes {
		unload := load(t, f[kubeproxy.Node], m)
		for _, fam := range families {
			for _, network := range []string{"tcp", "udp"} {
				t.Run(strings.Join([]string{string(m), fam.name, network}, "/"), func(t *testing.T) {
					for _, s := range kubeproxy.Services() {
						t.Run(s.Name, func(t *testing.T) { caller{f, fam, network}.paths(t, s) })
					}
				})
			}
		}
		before := nltest.Tracked(t, f[kubeproxy.Node])
		unload()
		if left := nltest.Tracked(t, f[kubeproxy.Node]); before == 0 || left > 0 {
			t.Errorf("%s: %d connections are tracked, and %d after unload", m, before, left)
		}
	}
}

func (c caller) paths(t *testing.T, s kubeproxy.Service) {
	clusterIP := netip.AddrPortFrom(c.addrOf(s.ClusterIP), s.Port)
	nodePort := netip.AddrPortFrom(c.addrOf(scenario[kubeproxy.Node]), s.NodePort)
	if len(s.Backends) == 0 {
		if _, _, err := c.call(kubeproxy.Client, clusterIP); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, want a refusal", err)
		}
		return
	}
	as := kubeproxy.Client
	if slices.Contains(s.Backends, as) {
		as = kubeproxy.Node // a pod that calls itself could not distinguish the answer from its own request
	}
	c.want(t, kubeproxy.Client, as, clusterIP, s.Backends)
	c.want(t, kubeproxy.Node, kubeproxy.Node, clusterIP, s.Backends)
	if len(s.Backends) > 1 {
		c.balance(t, s, clusterIP)
	}
	switch {
	case s.ExternalTrafficLocal:
		c.want(t, kubeproxy.VPCHost, kubeproxy.VPCHost, nodePort, s.Backends)
		c.want(t, kubeproxy.Client, kubeproxy.Client, nodePort, s.Backends)
	case s.NodePort != 0:
		c.want(t, kubeproxy.VPCHost, kubeproxy.Node, nodePort, s.Backends)
		c.want(t, kubeproxy.Client, kubeproxy.Node, nodePort, s.Backends)
	}
}

// balance calls a Service many times. If the Service has affinity, the same backend must answer each time. Otherwise,
// each backend must answer at least once.
func (c caller) balance(t *testing.T, s kubeproxy.Service, to netip.AddrPort) {
	calls, want := 64, len(s.Backends) // two backends: the chance that all 64 calls reach the same backend is 1 in 2^63
	if s.ClientIPAffinity {
		calls, want = 16, 1
	}
	answered := map[kubeproxy.Host]int{}
	for range calls {
		answered[c.want(t, kubeproxy.Client, kubeproxy.Client, to, s.Backends)]++
	}
	if len(answered) != want {
		t.Errorf("answers by %v, want %d of them", answered, want)
	}
}
