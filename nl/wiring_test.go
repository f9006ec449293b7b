// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

func TestMain(m *testing.M) { os.Exit(nltest.Guard{M: m}.Run()) }

// two makes the two namespaces of a test.
func two(t testing.TB) (host, pod *nl.NS) {
	host, _ = nltest.NS(t, "host")
	pod, _ = nltest.NS(t, "pod")
	return host, pod
}

const nearMAC, farMAC = "02:00:00:00:00:01", "02:00:00:00:00:02"

// pair returns a wiring with most kinds of objects.
func pair(host, pod *nl.NS) nl.Wiring {
	node, ip := netip.MustParseAddr("10.0.0.4"), netip.MustParseAddr("10.0.1.9")
	vpc := netip.MustParsePrefix("10.0.0.0/16")
	return nl.Wiring{
		{host, nl.Veth{Name: "veth.1", MAC: nearMAC, Peer: "eth1", PeerMAC: farMAC, PeerNS: pod, MTU: 9001, Group: 72,
			Alias: "net id eth0"}},
		{host, nl.Sysctl{Key: "net/ipv4/conf/veth.1/send_redirects", Value: "0"}},
		{pod, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
		{pod, nl.Neigh{Addr: node, MAC: nearMAC, Dev: "eth1"}},
		{pod, nl.Addr{Prefix: netip.PrefixFrom(ip, 32), Dev: "eth1"}},
		{pod, nl.Addr{Prefix: netip.MustParsePrefix("fd00::9/64"), Dev: "eth1", NoDAD: true}},
		{pod, nl.Route{Dst: netip.PrefixFrom(node, 32), Dev: "eth1", Protocol: nl.RouteProtocol}},
		{pod, nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: node, Dev: "eth1", Src: ip, MTU: 1500}},
		{pod, nl.Route{Dst: netip.MustParsePrefix("fd00:1::/32"), Via: netip.MustParseAddr("fe80::1"), Dev: "eth1",
			OnLink: true}},
		{pod, nl.Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), Type: "unreachable", Metric: 7}},
		{pod, nl.Route{Dst: netip.MustParsePrefix("fd00:ec2::254/128"), Type: "prohibit"}},
		{host, nl.Route{Dst: netip.PrefixFrom(ip, 32), Dev: "veth.1", Protocol: nl.RouteProtocol, Replace: true}},
		{host, nl.Route{Dst: vpc, Via: ip, Dev: "veth.1", Table: 263, Protocol: nl.RouteProtocol}},
		{host, nl.Rule{Pref: 1024, IIF: "veth.1", Table: 263, Protocol: nl.RouteProtocol}},
		{host, nl.Rule{Pref: 1024, IIF: "veth.1", Table: 70000, Family: nl.IPv6, Protocol: nl.RouteProtocol}},
		{host, nl.Rule{Pref: 1014, Not: true, IIF: "lo", Table: 1<<31 + 72, Protocol: nl.RouteProtocol}},
		{host, nl.Rule{Pref: 1024, From: netip.PrefixFrom(ip, 32), To: vpc, IIF: "lo", Table: 263}},
		{host, nl.Rule{Pref: 512, Mark: 0x2000, Mask: 0x2000, Table: 254}},
		{pod, nl.Table{Family: "inet", Name: "ours", Chains: []nl.Chain{
			{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
				{nl.IIFName("eth1"), nl.OIFName("eth0"), nl.Masquerade()},
			}},
		}}},
	}
}

func TestWiringString(t *testing.T) {
	const want = `host: ip link add veth.1 numtxqueues 1 numrxqueues 1 address 02:00:00:00:00:01 mtu 9001 group 72 alias "net id eth0" type veth peer name eth1 numtxqueues 1 numrxqueues 1 address 02:00:00:00:00:02 netns pod
host: sysctl -w net/ipv4/conf/veth.1/send_redirects=0
pod:  sysctl -w net.ipv4.ip_forward=1
pod:  ip neigh add 10.0.0.4 lladdr 02:00:00:00:00:01 dev eth1
pod:  ip addr add 10.0.1.9/32 dev eth1
pod:  ip addr add fd00::9/64 dev eth1 nodad
pod:  ip route add 10.0.0.4/32 dev eth1 scope link proto 72
pod:  ip route add default via 10.0.0.4 dev eth1 src 10.0.1.9 mtu 1500
pod:  ip -6 route add fd00:1::/32 via fe80::1 dev eth1 onlink
pod:  ip route add unreachable 10.9.0.0/16 metric 7
pod:  ip -6 route add prohibit fd00:ec2::254/128
host: ip route replace 10.0.1.9/32 dev veth.1 scope link proto 72
host: ip route add 10.0.0.0/16 via 10.0.1.9 dev veth.1 table 263 proto 72
host: ip rule add pref 1024 iif veth.1 lookup 263 protocol 72
host: ip -6 rule add pref 1024 iif veth.1 lookup 70000 protocol 72
host: ip rule add not pref 1014 iif lo lookup 2147483720 protocol 72
host: ip rule add pref 1024 from 10.0.1.9/32 to 10.0.0.0/16 iif lo lookup 263
host: ip rule add pref 512 fwmark 0x2000/0x2000 lookup main
pod:  nft 'table inet ours {
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		iifname "eth1" oifname "eth0" masquerade fully-random
	}
}'
`
	got := pair(&nl.NS{Name: "host"}, &nl.NS{Name: "pod"}).String()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
}

// TestWiring adds, checks and deletes a wiring, each twice.
func TestWiring(t *testing.T) {
	host, pod := two(t)
	w := pair(host, pod)
	before := nltest.Dump(t, host, pod)
	if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check before Add: %v", err)
	}
	var during string
	for _, step := range []struct {
		name string
		do   func() error
	}{{"Add", w.Add}, {"Check", w.Check}, {"Add again", w.Add}, {"Check again", w.Check}} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if d := nltest.Dump(t, host, pod); during != "" && d != during {
			t.Errorf("%s changed something:\n%s", step.name, cmp.Diff(during, d))
		} else {
			during = d
		}
	}
	t.Log("\n" + during)
	for _, name := range []string{"Del", "Del again"} {
		if err := w.Del(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if d := cmp.Diff(before, nltest.Dump(t, host, pod)); d != "" {
			t.Errorf("%s left something: -before +after\n%s", name, d)
		}
	}
}

// TestAddOrNothing: if a step fails, Add undoes the steps before it.
func TestAddOrNothing(t *testing.T) {
	host, pod := two(t)
	before := nltest.Dump(t, host, pod)
	w := pair(host, pod)
	for i := range w {
		w := append(w[:i:i], nl.Step{host, nl.Route{Dst: netip.MustParsePrefix("10.9.0.0/16"), Dev: "absent"}})
		err := w.Add()
		if err == nil {
			t.Fatal("no error")
		}
		const want = "host: ip route add 10.9.0.0/16 dev absent scope link: link absent: no such device"
		if err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if d := cmp.Diff(before, nltest.Dump(t, host, pod)); d != "" {
			t.Errorf("after %d steps: -before +after\n%s", i, d)
		}
	}
}

// TestAddKeepsWhatWas: Add undoes only its own steps. It keeps objects that were there before.
func TestAddKeepsWhatWas(t *testing.T) {
	host, pod := two(t)
	w := pair(host, pod)
	if err := w[:8].Add(); err != nil {
		t.Fatal(err)
	}
	before := nltest.Dump(t, host, pod)
	if err := append(w, nl.Step{host, nl.Up{Dev: "absent"}}).Add(); err == nil {
		t.Fatal("no error")
	}
	if d := cmp.Diff(before, nltest.Dump(t, host, pod)); d != "" {
		t.Errorf("-before +after\n%s", d)
	}
}

// TestAddRefusesWhatDiffers: an object exists with other properties. Add fails, names these properties, and changes
// nothing.
func TestAddRefusesWhatDiffers(t *testing.T) {
	host, pod := two(t)
	if err := pair(host, pod).Add(); err != nil {
		t.Fatal(err)
	}
	before := nltest.Dump(t, host, pod)
	node := netip.MustParseAddr("10.0.0.4")
	for want, s := range map[string]nl.Step{
		"mtu of veth.1 is 9001, not 1500": {host, nl.Veth{Name: "veth.1", MAC: nearMAC, Peer: "eth1",
			PeerMAC: farMAC, PeerNS: pod, MTU: 1500, Group: 72, Alias: "net id eth0"}},
		"address of eth1 is 02:00:00:00:00:02, not": {host, nl.Veth{Name: "veth.1", MAC: nearMAC, Peer: "eth1",
			PeerMAC: nearMAC, PeerNS: pod, MTU: 9001, Group: 72, Alias: "net id eth0"}},
		"alias is net id eth0, not other's": {host, nl.Veth{Name: "veth.1", MAC: nearMAC, Peer: "eth1",
			PeerMAC: farMAC, PeerNS: pod, MTU: 9001, Group: 72, Alias: "other's"}},
		"file exists: another object is in its place (there is another route, ip route add default via 10.0.0.4": {
			pod, nl.Route{Dst: netip.MustParsePrefix("0.0.0.0/0"), Via: node, Dev: "eth1"}},
	} {
		err := nl.Wiring{s}.Add()
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to contain %q", err, want)
		}
	}
	if d := cmp.Diff(before, nltest.Dump(t, host, pod)); d != "" {
		t.Errorf("-before +after\n%s", d)
	}
}

// TestDelWithoutNamespace: the pod's namespace is gone. Del deletes the objects on the node.
func TestDelWithoutNamespace(t *testing.T) {
	host, pod := two(t)
	before := nltest.Dump(t, host)
	if err := pair(host, pod).Add(); err != nil {
		t.Fatal(err)
	}
	w := pair(host, nil)
	if err := w.Check(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check: %v", err)
	}
	if err := w.Add(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Add: %v", err)
	}
	for range 2 {
		if err := w.Del(); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(before, nltest.Dump(t, host)); d != "" {
		t.Errorf("-before +after\n%s", d)
	}
}

func TestOpenAbsent(t *testing.T) {
	if _, err := nl.Open("pod", t.TempDir()+"/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	file := t.TempDir() + "/unmounted"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := nl.Open("pod", file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is no namespace: %v", err)
	}
}
