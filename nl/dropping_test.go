// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"os/exec"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// docker has the rules of dockerd and kube-proxy, as iptables-nft writes them on a node without other rules.
const docker = `iptables-nft -P FORWARD DROP
	iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER
	iptables-nft -N DOCKER; iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	iptables-nft -A FORWARD -o docker0 -j DOCKER; iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
	iptables-nft -N KUBE-FORWARD; iptables-nft -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
	iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
	iptables-nft -A KUBE-FORWARD -m comment --comment marked -m mark --mark 0x4000/0x4000 -j ACCEPT
	iptables-nft -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; `

// firewalld has the chains of firewalld, with one zone.
const firewalld = `nft 'table inet firewalld {
	chain zones { iifname "docker0" goto docker; goto public; }
	chain docker { accept; }
	chain public { counter; jump public_allow; }
	chain public_allow { oifname "docker0" accept; }
	chain forward { type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		jump zones
		ct state invalid drop
		log prefix "refused" reject with icmpx admin-prohibited; }
}'; `

// TestDroppingChains compares the chains that DroppingChains names with the expected chains. It also sends a packet,
// to see whether netfilter drops it.
func TestDroppingChains(t *testing.T) {
	nltest.Need(t, "root", "netns", "nftables", "iptables")
	hardened := func(rule string) string {
		return `nft 'table inet filter { chain forward { type filter hook forward priority 0; policy drop;
			ct state vmap { established : accept, related : accept, invalid : drop }; ` + rule + `; }; }'`
	}
	chains := func(names ...string) (all []nl.DroppingChain) {
		for _, n := range names {
			all = append(all, nl.DroppingChain{Name: n})
		}
		return all
	}
	from := func(chain, sources string) []nl.DroppingChain {
		return []nl.DroppingChain{{Name: chain, From: netip.MustParsePrefix(sources)}}
	}
	for name, c := range map[string]struct {
		rules  string
		want   []nl.DroppingChain
		passes bool
	}{
		"nothing": {passes: true},
		"an empty chain": {rules: `nft 'table ip a { chain forward { type filter hook forward priority 0; ` +
			`policy drop; }; }'`, want: []nl.DroppingChain{{Name: "ip a forward", Empty: true}}},
		"of another family": {rules: `nft 'table ip6 a { chain forward { type filter hook forward priority 0; ` +
			`policy drop; }; }'`, passes: true},
		"at another hook": {rules: `nft 'table ip a { chain input { type filter hook input priority 0; policy ` +
			`drop; }; chain f { type filter hook forward priority 0; }; }'`, passes: true},
		"some are rejected": {rules: `nft 'table ip a { chain forward { type filter hook forward priority 0; tcp ` +
			`dport 7 reject; }; }'`, passes: true},
		"docker": {rules: docker, want: chains("ip filter FORWARD")},
		"docker, with a rule": {rules: docker +
			`iptables-nft -I DOCKER-USER -i veth+ -j ACCEPT; iptables-nft -I DOCKER-USER -o veth+ -j ACCEPT`,
			want: chains("ip filter FORWARD"), passes: true},
		"firewalld": {rules: firewalld, want: chains("inet firewalld forward")},
		"firewalld, with its check of sources": {rules: `nft 'table inet firewalld { chain pre { type filter hook ` +
			`prerouting priority 10; meta nfproto ipv4 fib saddr . mark . iif oif missing log prefix "x" drop; }; }'`,
			want: []nl.DroppingChain{{Name: "inet firewalld pre", Source: true}}, passes: true},
		"a check of sources of another family": {rules: `nft 'table inet firewalld { chain pre { type filter hook ` +
			`prerouting priority 10; meta nfproto ipv6 fib saddr . mark . iif oif missing drop; }; }'`, passes: true},
		"ours": {rules: `nft 'table inet cni_ipvlan_vpc_k8s { chain pre { type filter hook prerouting priority 0; ` +
			`fib saddr . iif oif missing drop; }; }'`, passes: true},
		"iptables, with its check of sources": {rules: `iptables-nft -t raw -A PREROUTING -m rpfilter --invert -j DROP`,
			want: []nl.DroppingChain{{Name: "ip raw PREROUTING", Source: true}}, passes: true},
		"tailscale": {rules: `iptables-nft -N ts; iptables-nft -A FORWARD -j ts; ` +
			`iptables-nft -A ts ! -i tailscale0 -s 10.9.3.0/24 -j RETURN; ` +
			`iptables-nft -A ts ! -i tailscale0 -s 10.8.0.0/13 -j DROP`, want: from("ip filter ts", "10.8.0.0/13")},
		"tailscale, without the jump": {rules: `iptables-nft -N ts; ` +
			`iptables-nft -A ts ! -i tailscale0 -s 10.8.0.0/13 -j DROP`, passes: true},
		"a range of whole bytes": {rules: `iptables-nft -A FORWARD -s 10.9.0.0/16 -j DROP`,
			want: from("ip filter FORWARD", "10.9.0.0/16")},
		"an address, rejected": {rules: `nft 'table inet a { chain forward { type filter hook forward priority 0; ` +
			`ip saddr 10.9.1.2 counter reject; }; }'`, want: from("inet a forward", "10.9.1.2/32")},
		"a range of another family": {rules: `nft 'table inet a { chain forward { type filter hook forward priority 0; ` +
			`ip6 saddr fd00::/8 drop; }; }'`, passes: true},
		"a range, by a link":      {rules: `iptables-nft -A FORWARD -i other -s 10.9.0.0/16 -j DROP`, passes: true},
		"a range, by a port":      {rules: `iptables-nft -A FORWARD -s 10.9.0.0/16 -p tcp --dport 7 -j DROP`, passes: true},
		"a range of destinations": {rules: `iptables-nft -A FORWARD -d 10.9.3.0/24 -j DROP`, passes: true},
		"all but a range":         {rules: `iptables-nft -A FORWARD ! -s 10.9.0.0/16 -j DROP`, passes: true},
		"hardened":                {rules: hardened(""), want: chains("inet filter forward")},
		"hardened, by group": {rules: hardened("iifgroup 72 accept; oifgroup 72 accept"),
			want: chains("inet filter forward"), passes: true},
		"two": {rules: hardened("") + `;` + docker,
			want: chains("inet filter forward", "ip filter FORWARD")},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod, out := forwardScene(t)
			nltest.Shell(t, node, c.rules)
			got, err := node.DroppingChains(nl.IPv4)
			if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Prefix{})); err != nil || diff != "" {
				t.Errorf("%v; -want +got\n%s", err, diff)
			}
			wait := "0.5"
			if c.passes {
				wait = "30" // wait for the answer, even on a busy machine
			}
			if passed := pod.Do(exec.Command("ping", "-c", "1", "-W", wait, out).Run) == nil; passed != c.passes {
				t.Errorf("the packet passed: %v", passed)
			}
		})
	}
}

// forwardScene makes a pod, another host, and a node that forwards the pod's packets to this host.
func forwardScene(t *testing.T) (node, pod *nl.NS, host string) {
	t.Helper()
	node, _ = nltest.NS(t, "node")
	pod, _ = nltest.NS(t, "pod")
	other, _ := nltest.NS(t, "other")
	prefix := netip.MustParsePrefix
	w := nl.Wiring{
		{NS: node, Object: nl.Veth{Name: "veth0123456789a", Peer: "eth0", PeerNS: pod, Group: 72}},
		{NS: node, Object: nl.Veth{Name: "eth0", Peer: "eth0", PeerNS: other}},
		{NS: node, Object: nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}},
	}
	for i, n := range []*nl.NS{pod, other} {
		net := []string{"10.9.1.", "10.9.2."}[i]
		w = append(w, nl.Step{NS: node, Object: nl.Addr{Prefix: prefix(net + "1/24"),
			Dev: []string{"veth0123456789a", "eth0"}[i]}},
			nl.Step{NS: n, Object: nl.Addr{Prefix: prefix(net + "2/24"), Dev: "eth0"}},
			nl.Step{NS: n, Object: nl.Route{Dst: prefix("0.0.0.0/0"), Via: netip.MustParseAddr(net + "1"),
				Dev: "eth0"}})
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	return node, pod, "10.9.2.2"
}
