// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// TestCallers calls a pod that checks sources strictly (rp_filter): directly, and at a NodePort whose Service keeps the
// caller's address.
func TestCallers(t *testing.T) {
	for _, c := range []struct {
		loop                    string
		keepCaller              bool
		tcp, datagrams, outside string // the sources that pods see for otherAddr and the internet
	}{
		{"redirect", false, nodeAddr, nodeAddr, internet},
		{"masquerade", false, nodeAddr, nodeAddr, internet},
		{"redirect", true, otherAddr, nodeAddr, internet},
		{"masquerade", true, otherAddr, otherAddr, internet},
		{"none", false, nodeAddr, nodeAddr, nodeAddr},
	} {
		t.Run(fmt.Sprintf("%s, keepCaller %t", c.loop, c.keepCaller), func(t *testing.T) {
			s := newSceneKeeping(t, c.keepCaller, [2]string{c.loop, c.loop})
			s.add(s.pods[0].NS, nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "1"})
			s.add(s.router, nl.Route{Dst: netip.MustParsePrefix(nodeAddr + "/32"), Dev: "eni0",
				Src: netip.MustParseAddr(internet)})
			serve(t, s.pods[0].NS, ":8082")
			s.callers(t, c.tcp, c.datagrams, c.outside)
		})
	}
}

// callers calls the first pod of a scene. The arguments are the sources that the pod must see at a NodePort: tcp and
// datagrams in calls of the other host, and outside in calls from the internet.
func (s scene) callers(t *testing.T, tcp, datagrams, outside string) {
	t.Helper()
	const nodePort, direct = nodeAddr + ":30082", pod1Addr + ":8082"
	all := []string{"tcp4", "udp4", "tcp6", "udp6"}
	for _, c := range []struct {
		name     string
		from     *nl.NS
		to, seen string
		networks []string
	}{
		{"other host to NodePort", s.other, nodePort, tcp, []string{"tcp4", "tcp6"}},
		{"other host to NodePort", s.other, nodePort, datagrams, []string{"udp4", "udp6"}},
		{"internet to NodePort", s.router, nodePort, outside, []string{"tcp4", "udp4"}},
		{"other host to pod", s.other, direct, otherAddr, all},
		{"node to pod", s.node, direct, nodeAddr, all},
	} {
		for _, network := range c.networks {
			seen, err := call(c.from, network, dialled(network, c.to))
			if want := seenAs(network, c.seen); err != nil || seen != want {
				t.Errorf("%s (%s): seen as %q, want %q; %v", c.name, network, seen, want, err)
			}
		}
	}
}

// TestCallersMTU sends datagrams in fragments, which must arrive. If the path to the caller has a smaller MTU, the ICMP
// error must reach the socket that answers.
func TestCallersMTU(t *testing.T) {
	const size = 300_000
	for _, loop := range []string{"redirect", "masquerade"} {
		s := newSceneKeeping(t, true, [2]string{loop, loop})
		p := s.pods[0].NS
		serve(t, p, ":8082")
		listen(t, p, ":8083", func(c net.Conn) { c.Write(make([]byte, size)) })
		for _, network := range []string{"udp4", "udp6"} {
			if _, err := send(s.other, network, dialled(network, nodeAddr+":30082"), 20000); err != nil {
				t.Errorf("%s (%s), in fragments: %v", loop, network, err)
			}
		}
		s.add(s.router, nl.Up{Dev: "eni2", MTU: 1500})
		for _, network := range []string{"tcp4", "tcp6"} {
			if got, err := call(s.other, network, dialled(network, nodeAddr+":30083")); err != nil || len(got) != size {
				t.Errorf("%s (%s): arrived %d of %d; %v", loop, network, len(got), size, err)
			}
		}
	}
}

// TestUnmarked: a pod has the rules of an earlier release, which did not mark callers. CHECK succeeds, whatever rules
// for callers the node has. After the pod has lost its own rules, CHECK fails. DEL leaves no rules.
func TestUnmarked(t *testing.T) {
	chain := nl.Chain{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100, Rules: []nl.NFRule{
		{nl.IIFName("eth1"), nl.OIFName("eth0"), nl.Masquerade()},
	}}
	for loop, unmarked := range map[string]nl.Object{
		"redirect":   nl.Splice{ENI: "eth0", Veth: "eth1", MAC: "02:00:00:00:00:48"},
		"masquerade": nl.Table{Family: "inet", Name: nl.OwnTable, Chains: []nl.Chain{chain}},
	} {
		t.Run(loop, func(t *testing.T) {
			f := newFabric(t)
			p := f.pod("pod1", pod1Addr, dual)
			p.request.Config.ServiceLoop, p.request.Config.KeepCaller = loop, true
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			must(t, ours(t, p).Del())
			if err := f.CHECK(p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("CHECK without the rules: %v", err)
			}
			f.add(p.NS, unmarked)
			must(t, f.CHECK(p))
			must(t, f.ADD(f.pod("pod2", pod2Addr))) // this ADD changes the node's chain for callers
			must(t, f.CHECK(p))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			if n := len(ours(t, p)); n != 2 {
				t.Errorf("after another ADD there are %d rules, want one for each family", n)
			}
			must(t, f.DEL(p))
			if left := ours(t, p); len(left) != 0 {
				t.Errorf("DEL leaves\n%s", left)
			}
		})
	}
}

// TestUnsplit: a pod has the rules of an earlier release, which also match packets that the pod forwards. CHECK
// succeeds, and Missing finds nothing. DEL leaves no rules, even if another ADD has added the rules of this release. A
// repeated ADD replaces the rules, and so does Repeat after the loss of the pair.
func TestUnsplit(t *testing.T) {
	add := func(f *fabric, p *pod, iif string) {
		for _, family := range nl.Families {
			f.add(p.NS, nl.Rule{Pref: 512, Family: family, IIF: iif, Mark: 0x2000, Mask: 0x2000, Table: 72,
				Protocol: nl.RouteProtocol})
		}
	}
	for name, iifs := range map[string][]string{"old": {""}, "old and new": {"", "lo"}, "new and old": {"lo", ""}} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			p := f.pod("pod1", pod1Addr, dual)
			p.request.Config.KeepCaller = true
			must(t, f.ADD(p))
			must(t, ours(t, p).Del())
			for _, iif := range iifs {
				add(f, p, iif)
			}
			must(t, f.CHECK(p))
			if l := f.missing(p); !l.None() {
				t.Errorf("it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
			}
			must(t, f.DEL(p))
			if left := ours(t, p); len(left) != 0 {
				t.Errorf("DEL leaves\n%s", left)
			}
			must(t, f.ADD(p))
			split := ours(t, p).String()
			for what, again := range map[string]func() error{
				"ADD": func() error { return f.ADD(p) },
				"Repeat": func() error {
					must(t, f.node.DelPair(nl.Link{Name: p.veth()}))
					return f.node.Do(func() error { return ptp.Repeat(t.Context(), &p.request) })
				},
			} {
				must(t, ours(t, p).Del())
				for _, iif := range iifs {
					add(f, p, iif)
				}
				must(t, again())
				same(t, what, split, ours(t, p).String())
				must(t, f.CHECK(p))
			}
		})
	}
}

// ours returns the rules in a pod that have our protocol number.
func ours(t *testing.T, p *pod) (w nl.Wiring) {
	t.Helper()
	rules, err := p.Rules()
	must(t, err)
	for _, r := range rules {
		if r.Protocol == nl.RouteProtocol {
			w = append(w, nl.Step{NS: p.NS, Object: r})
		}
	}
	return w
}
