// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl_test

import (
	"net/netip"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// docker is what dockerd makes of an iptables-nft that is empty, and kube-proxy adds.
const docker = `iptables-nft -P FORWARD DROP
	iptables-nft -N DOCKER-USER; iptables-nft -A DOCKER-USER -j RETURN; iptables-nft -A FORWARD -j DOCKER-USER
	iptables-nft -N DOCKER; iptables-nft -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
	iptables-nft -A FORWARD -o docker0 -j DOCKER; iptables-nft -A FORWARD -i docker0 ! -o docker0 -j ACCEPT
	iptables-nft -N KUBE-FORWARD; iptables-nft -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
	iptables-nft -A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
	iptables-nft -A KUBE-FORWARD -m comment --comment marked -m mark --mark 0x4000/0x4000 -j ACCEPT
	iptables-nft -A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; `

// firewalld is the frame of its rules, with one zone.
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

// TestRefusals compares what netfilter does to a packet with what is said of it.
func TestRefusals(t *testing.T) {
	nltest.Need(t, "root", "netns", "nftables", "iptables")
	hardened := func(rule string) string {
		return `nft 'table inet filter { chain forward { type filter hook forward priority 0; policy drop;
			ct state vmap { established : accept, related : accept, invalid : drop }; ` + rule + `; }; }'`
	}
	sure, unsure := func(chain string) []nl.Refusal { return []nl.Refusal{{Chain: chain}} }, func(chain string) []nl.Refusal { return []nl.Refusal{{Chain: chain, Maybe: true}} }
	for name, c := range map[string]struct {
		rules     string
		rewritten bool
		want      []nl.Refusal
	}{
		"nothing":                      {},
		"an empty chain":               {rules: `nft 'table ip a { chain forward { type filter hook forward priority 0; policy drop; }; }'`, want: sure("ip a forward")},
		"of another family":            {rules: `nft 'table ip6 a { chain forward { type filter hook forward priority 0; policy drop; }; }'`},
		"at another hook":              {rules: `nft 'table ip a { chain input { type filter hook input priority 0; policy drop; }; chain f { type filter hook forward priority 0; }; }'`},
		"docker":                       {rules: docker, want: sure("ip filter FORWARD")},
		"docker, and a rule for veth":  {rules: docker + `iptables-nft -I DOCKER-USER -i veth+ -j ACCEPT; iptables-nft -I DOCKER-USER -o veth+ -j ACCEPT`},
		"docker, and one pod's rule":   {rules: docker + `iptables-nft -I DOCKER-USER -i veth12345678 -j ACCEPT`, want: sure("ip filter FORWARD")},
		"firewalld":                    {rules: firewalld, want: sure("inet firewalld forward")},
		"firewalld, a Service":         {rules: firewalld, rewritten: true},
		"hardened":                     {rules: hardened(""), want: sure("inet filter forward")},
		"hardened, by group":           {rules: hardened("iifgroup 72 accept; oifgroup 72 accept")},
		"hardened, by name":            {rules: hardened(`iifname "veth*" accept`)},
		"hardened, by another name":    {rules: hardened(`iifname != "docker0" oifname "eth1" accept`), want: sure("inet filter forward")},
		"hardened, by index":           {rules: hardened(`iif "lo" accept; oif != "eth0" accept`), want: sure("inet filter forward")},
		"hardened, by names":           {rules: hardened(`iifname { "docker0", "eth0" } accept`), want: sure("inet filter forward")},
		"hardened, by address":         {rules: hardened(`ip saddr 10.9.0.0/16 accept`), want: unsure("inet filter forward")},
		"hardened, but for a protocol": {rules: hardened(`jump some; }; chain some { meta l4proto tcp accept; meta mark 0 return; accept`), want: unsure("inet filter forward")},
		"hardened, and no answer":      {rules: hardened(`iifgroup 72 accept; }; chain back { type filter hook forward priority 1; policy drop; iifgroup 72 accept`)},
		"two":                          {rules: hardened("") + `;` + docker, want: append(sure("inet filter forward"), sure("ip filter FORWARD")...)},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod, out := refusalScene(t)
			run(t, node, c.rules)
			there := nl.Passage{In: "veth0123456789a", Out: "eth0", InGroup: 72, Rewritten: c.rewritten}
			back := nl.Passage{In: "eth0", Out: "veth0123456789a", OutGroup: 72, Rewritten: c.rewritten, Answer: true}
			got, err := node.Refusals(there)
			if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
				t.Errorf("%v; -want +got\n%s", err, diff)
			}
			answers, err := node.Refusals(back)
			if got = append(got, answers...); err != nil {
				t.Error(err)
			}
			if c.rewritten {
				run(t, node, `nft 'table ip nat { chain prerouting { type nat hook prerouting priority -100; ip daddr 10.9.3.1 dnat to 10.9.2.2; }; }'`)
				out = "10.9.3.1"
			}
			passed := pod.Do(exec.Command("ping", "-c", "1", "-W", "0.5", out).Run) == nil
			unsure := slices.ContainsFunc(got, func(r nl.Refusal) bool { return r.Maybe })
			if passed != (len(got) == 0) && !unsure {
				t.Errorf("the packet passed: %v; and of it was said %v", passed, got)
			}
		})
	}
}

// refusalScene is a node between a pod and the address of a host.
func refusalScene(t *testing.T) (node, pod *nl.NS, host string) {
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
		w = append(w, nl.Step{NS: node, Object: nl.Addr{Prefix: prefix(net + "1/24"), Dev: []string{"veth0123456789a", "eth0"}[i]}},
			nl.Step{NS: n, Object: nl.Addr{Prefix: prefix(net + "2/24"), Dev: "eth0"}},
			nl.Step{NS: n, Object: nl.Route{Dst: prefix("0.0.0.0/0"), Via: netip.MustParseAddr(net + "1"), Dev: "eth0"}})
	}
	if err := w.Add(); err != nil {
		t.Fatal(err)
	}
	return node, pod, "10.9.2.2"
}

func run(t *testing.T, n *nl.NS, script string) {
	t.Helper()
	if err := n.Do(func() error {
		out, err := exec.Command("sh", "-ec", script).CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
