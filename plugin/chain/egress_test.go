// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// TestEgressOfPod: a client or a router gets one tunnel, even with a strict rp_filter. A further attachment of the pod
// gets none, and the DEL of this attachment does not delete the tunnel.
func TestEgressOfPod(t *testing.T) {
	nltest.Need(t, "fou")
	for keys, role := range map[string]string{"namespaces": egress.Client, "routers": egress.Router} {
		t.Run(role, func(t *testing.T) {
			n := newNode(t)
			pod, path := nltest.NS(t, "pod")
			for _, link := range []string{"all", "default"} {
				n.must(nl.Sysctl{Key: "net/ipv4/conf/" + link + "/rp_filter", Value: "1"}.Add(pod))
			}
			bare := nltest.Dump(t, pod)
			first, further := n.request(path, egressing(keys)), n.request(path, egressing(keys))
			further.IfName = "net1"
			result, err := n.ADD(first)
			n.must(err)
			made := nltest.Dump(t, pod)
			if _, err := n.ADD(first); err != nil {
				t.Errorf("ADD again: %v", err)
			}
			n.same("the second ADD changed something", made, nltest.Dump(t, pod))
			n.anySource(pod)
			if s, err := egress.Read(pod); err != nil || s.Role != role {
				t.Errorf("the pod is %+v, want a %s; %v", s, role, err)
			}
			second, err := n.ADD(further)
			n.must(err)
			n.must(n.CHECK(first, result))
			n.must(n.CHECK(further, second))
			n.must(n.DEL(further))
			n.same("the further attachment has changed something", made, nltest.Dump(t, pod))
			n.must(n.CHECK(first, result))
			first.Prev = result
			n.must(n.DEL(first))
			n.same("DEL left something", bare, nltest.Dump(t, pod))
			n.vacant()
		})
	}
}

// TestEgressOfRepairedPod: a client or a router has lost its veth pair, and the test restores the pair as cni-tool
// repair does. rp_filter must be off on the new link, too.
func TestEgressOfRepairedPod(t *testing.T) {
	nltest.Need(t, "fou")
	for _, keys := range []string{"namespaces", "routers"} {
		n := newNode(t)
		pod, path := nltest.NS(t, "pod")
		// systemd sets rp_filter to 2.
		n.must(nl.Wiring{{NS: pod, Object: nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "2"}}}.Add())
		r := n.request(path, egressing(keys))
		_, err := n.ADD(r)
		n.must(err)
		n.must(nl.Veth{Name: "eth1"}.Del(pod))
		_, err = n.three(r) // the three plugins, without egress
		n.must(err)
		n.anySource(pod)
		n.must(n.DEL(r))
	}
}

// TestEgressLost: a client or a router loses parts of its isolation. CHECK and doctor report each loss. CHECK accepts a
// complete pod that was added with another configuration.
func TestEgressLost(t *testing.T) {
	nltest.Need(t, "fou")
	const other = `{"e": {"gateways": ["172.20.0.78"], "destinations": ["198.51.100.0/24"], "clients": ` +
		`["10.0.0.0/9"], "selectable": ["none"], "%s": ["default"]}}`
	table := nl.Table{Family: "inet", Name: egress.Table}
	local := netip.MustParseAddr("10.0.1.20")
	out := func(dst, kind string) nl.Route {
		r := nl.Route{Dst: netip.MustParsePrefix(dst), Table: egress.TableOut, Protocol: nl.RouteProtocol, Type: kind,
			Metric: 2048}
		if kind == "" {
			r.Dev, r.Via, r.OnLink, r.Src, r.Metric = egress.Link4, netip.MustParseAddr("172.20.0.77"), true, local, 0
		}
		return r
	}
	rule := func(pref int) func(*nl.NS) error {
		return func(ns *nl.NS) error { return nl.Rule{Pref: pref, Family: nl.IPv4, Protocol: nl.RouteProtocol}.Del(ns) }
	}
	both := map[string]func(*nl.NS) error{
		"the table": table.Del,
		"all rules of it": nl.Table{Family: "inet", Name: egress.Table,
			Chains: []nl.Chain{{Name: "input", Type: "filter", Hook: "input", Rules: []nl.NFRule{{nl.Count()}}}}}.Add,
		"the tunnel":       nl.Tunnel{Name: egress.Link4}.Del,
		"the UDP port":     nl.FOU{Local: local, Port: egress.DefaultPort}.Del,
		"the tunnel is up": func(ns *nl.NS) error { return ns.SetDown(egress.Link4) },
		"a rule":           rule(1536),
	}
	of := map[string]map[string]func(*nl.NS) error{
		"namespaces": {
			"a route by the tunnel": out("203.0.113.0/24", "").Del,
			"all routes by the tunnel": func(ns *nl.NS) error {
				return errors.Join(out("203.0.113.0/24", "").Del(ns), out("10.8.0.0/13", "").Del(ns))
			},
			"a route that refuses": out("203.0.113.0/24", "unreachable").Del,
			"the routes to a destination, both": func(ns *nl.NS) error {
				return errors.Join(out("203.0.113.0/24", "").Del(ns), out("203.0.113.0/24", "unreachable").Del(ns))
			},
		},
		"routers": {"a rule of answers": rule(1540), "the route of answers": nl.Route{Dst: nl.IPv4.Everywhere(),
			Dev: egress.Link4, Src: local, Table: 74, Protocol: nl.RouteProtocol}.Del},
	}
	for role, own := range of {
		all := maps.Clone(both)
		maps.Copy(all, own)
		all["nothing"] = nil
		for lost, lose := range all {
			t.Run(role+"/"+lost, func(t *testing.T) {
				n := newNode(t)
				pod, path := nltest.NS(t, "pod")
				r := n.request(path, egressing(role))
				result, err := n.ADD(r)
				n.must(err)
				now := n.request(path, `, "egress": `+fmt.Sprintf(other, role))
				if lose != nil {
					n.must(lose(pod))
				}
				for what, err := range map[string]error{"CHECK": n.CHECK(r, result), "doctor": egress.Lost(pod, "eth0"),
					"CHECK of another configuration": n.CHECK(now, result)} {
					seen := err != nil
					// doctor cannot know the destinations: a pod that was added with another configuration would look
					// the same.
					unknown := lost == "the routes to a destination, both" && what != "CHECK"
					if seen != (lose != nil) && !unknown {
						t.Errorf("%s reports %v", what, err)
					}
				}
				if role == "namespaces" && slices.Contains([]string{"the tunnel", "the tunnel is up",
					"a route by the tunnel", "all routes by the tunnel"}, lost) {
					err := pod.Do(func() error { _, err := net.Dial("udp", partner.String()); return err })
					if !errors.Is(err, syscall.EHOSTUNREACH) {
						t.Errorf("a program that calls the partner gets %v, want no route to host", err)
					}
				}
				n.must(n.DEL(r))
			})
		}
	}
}

// anySource checks that rp_filter is off on all links of a pod.
func (n node) anySource(pod *nl.NS) {
	n.Helper()
	for _, link := range []string{"all", "eth0", "eth1", egress.Link4} {
		if v, err := pod.Sysctl("net/ipv4/conf/" + link + "/rp_filter"); err != nil || v != "0" {
			n.Errorf("rp_filter of %s is %s, want 0; %v", link, v, err)
		}
	}
}

// TestEgressRefused: a pod asks for an egress that it may not use. ADD fails, and leaves nothing. The error names the
// egress, and says what to do.
func TestEgressRefused(t *testing.T) {
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	bare := nltest.Dump(t, pod)
	r := n.request(path, egressing("routers")+
		`, "runtimeConfig": {"io.kubernetes.cri.pod-annotations": {"cni-ipvlan-vpc-k8s/egress": "e"}}`)
	r.Pod.Namespace = "shop"
	_, err := n.ADD(r)
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeRefused ||
		!strings.Contains(err.Error(), "the egress e does not allow pods of the namespace") {
		t.Errorf("got %v", err)
	}
	n.same("a pod that was refused has something", bare, nltest.Dump(t, pod))
	n.vacant()
	n.must(n.DEL(r))
}

// TestEgressOfAnotherPod: the path of a deleted pod leads to the namespace of another pod. The DEL of the deleted pod
// does not delete the other pod's tunnel.
func TestEgressOfAnotherPod(t *testing.T) {
	nltest.Need(t, "fou")
	n := newNode(t)
	pod, path := nltest.NS(t, "pod")
	r := n.request(path, egressing("namespaces"))
	_, err := n.ADD(r)
	n.must(err)
	made := nltest.Dump(t, pod)
	stale := n.request(path, egressing("namespaces"))
	stale.ContainerID = "gone"
	n.must(n.DEL(stale))
	n.same("the DEL of another pod has changed something", made, nltest.Dump(t, pod))
	n.must(n.DEL(r))
}
