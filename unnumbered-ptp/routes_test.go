// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// configured changes the configuration of a pod, and validates it.
func (f *fabric) configured(p *pod, change func(*ptp.Config)) *pod {
	f.t.Helper()
	change(&p.request.Config)
	if err := p.request.Config.Validate(); err != nil {
		f.t.Fatal(err)
	}
	return p
}

const (
	nodeLocalDNS = "169.254.20.10"
	byNode       = "198.51.100.7" // in the internet, but pods reach it through the node
)

// atNode sets hostCidrs: the Services of both families, nodeLocalDNS and byNode.
func atNode(c *ptp.Config) {
	c.HostCIDRs = []string{"172.20.0.0/16", "fd77::/64", nodeLocalDNS, byNode}
}

// TestRoutes tries both default routes. Traffic to hostCidrs goes through the node, and Services work. The internet
// sees the node's or the pod's address, as the configuration says.
func TestRoutes(t *testing.T) {
	for _, c := range []struct{ route, loop, internet string }{
		{"host", "redirect", nodeAddr}, {"vpc", "redirect", pod1Addr}, {"vpc", "masquerade", pod1Addr},
	} {
		t.Run(c.route+" "+c.loop, func(t *testing.T) {
			f := newFabric(t)
			f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(internet6 + "/128"), Dev: "lo", NoDAD: true},
				nl.Addr{Prefix: netip.MustParsePrefix(byNode + "/32"), Dev: "lo"})
			f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"),
				nl.Addr{Prefix: netip.MustParsePrefix(nodeLocalDNS + "/32"), Dev: "lo"})
			serve(t, f.other, ":8080")
			for _, addr := range []string{nodeAddr, sixth(nodeAddr), nodeLocalDNS} {
				serve(t, f.node, net.JoinHostPort(addr, "8080"))
			}
			for _, addr := range []string{internet, internet6, byNode} {
				serve(t, f.router, net.JoinHostPort(addr, "8080"))
			}
			p := f.configured(f.pod("pod1", pod1Addr, dual), func(cfg *ptp.Config) {
				atNode(cfg)
				cfg.DefaultRoute, cfg.ServiceLoop = c.route, c.loop
			})
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			for to, seen := range map[string]string{
				"172.20.0.10:80": pod1Addr, nodeAddr + ":8080": pod1Addr, otherAddr + ":8080": pod1Addr,
				nodeLocalDNS + ":8080": pod1Addr, byNode + ":8080": nodeAddr, internet + ":8080": c.internet,
			} {
				for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
					noSuch := strings.HasPrefix(to, nodeLocalDNS) || strings.HasPrefix(to, byNode) ||
						strings.HasPrefix(to, internet) && c.route == "host"
					if network[3] == '6' && noSuch {
						continue
					}
					got, err := call(p.NS, network, dialled(network, to))
					if want := seenAs(network, seen); err != nil || got != want {
						t.Errorf("%s (%s): seen as %q, want %q; %v", to, network, got, want, err)
					}
				}
			}
		})
	}
}

// TestRoutesLifecycle checks that DEL leaves no route, with any configuration.
func TestRoutesLifecycle(t *testing.T) {
	f := newFabric(t)
	first := f.pod("first", "10.0.1.52", dual)
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) { atNode(c); c.DefaultRoute = "vpc" })
	before := nltest.Dump(t, f.node, p.NS)
	for range 2 {
		must(t, f.ADD(p))
		must(t, f.ADD(p))
		must(t, f.CHECK(p))
		must(t, f.DEL(p))
		same(t, "DEL", before, nltest.Dump(t, f.node, p.NS))
		must(t, f.DEL(p))
	}
	must(t, f.ADD(p))
	p.request.Prev = nil
	must(t, f.DEL(p))
	same(t, "DEL without prevResult", before, nltest.Dump(t, f.node, p.NS))
}

// TestRoutesChanged repeats the ADD of a running pod with another default route. ADD fails, and changes nothing.
// Runtimes do not repeat an ADD without a DEL (CNI specification, section 2), but people may.
func TestRoutesChanged(t *testing.T) {
	for was, is := range map[string]string{"host": "vpc", "vpc": "host"} {
		t.Run(was+" to "+is, func(t *testing.T) {
			f := newFabric(t)
			p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) { atNode(c); c.DefaultRoute = was })
			must(t, f.ADD(p))
			before, result := nltest.Dump(t, f.node, p.NS), p.result
			f.configured(p, func(c *ptp.Config) { c.DefaultRoute = is })
			if f.ADD(p) == nil {
				t.Error("it has another default route now")
			}
			same(t, "the refused ADD", before, nltest.Dump(t, f.node, p.NS))
			f.configured(p, func(c *ptp.Config) { c.DefaultRoute = was })
			p.result = result
			must(t, f.CHECK(p))
		})
	}
}

// TestCheckLaterRoutes: a later plugin has added a route to the result that CHECK gets. CHECK must accept this (CNI
// specification 1.1.0, section 2, "CHECK": plugins may change routes).
func TestCheckLaterRoutes(t *testing.T) {
	for name, dst := range map[string]string{"default route": "0.0.0.0/0", "of hostCidrs": "172.20.0.0/16"} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			p := f.pod("pod", "10.0.1.50")
			p.request.Config.HostCIDRs = []string{"172.20.0.0/16"}
			must(t, p.request.Config.Validate())
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			later := *p.result
			later.Routes = append(slices.Clip(later.Routes), &types.Route{Dst: cidr(dst), GW: net.ParseIP("10.0.9.10")})
			p.result = &later
			must(t, f.CHECK(p))
			must(t, f.DEL(p))
		})
	}
}

// TestRoutesOfPeer: a peered VPC has the same CIDRs as the Services, so prevResult has routes through the ENI to these
// CIDRs. Packets to Services must still go to the node.
func TestRoutesOfPeer(t *testing.T) {
	for _, loop := range []string{"redirect", "masquerade"} {
		t.Run(loop, func(t *testing.T) {
			f := newFabric(t)
			f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
			serve(t, f.other, ":8080")
			peer := func(res *types100.Result) {
				for i, dst := range []string{"172.20.0.0/16", "fd77::/64"} {
					res.Routes = append(res.Routes, &types.Route{Dst: cidr(dst), GW: res.IPs[i].Gateway})
				}
			}
			p := f.configured(f.pod("pod1", pod1Addr, dual, peer), func(c *ptp.Config) {
				atNode(c)
				c.ServiceLoop = loop
			})
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
				got, err := call(p.NS, network, dialled(network, "172.20.0.10:80"))
				if want := seenAs(network, pod1Addr); err != nil || got != want {
					t.Errorf("%s: the service sees %q, want %q; %v", network, got, want, err)
				}
			}
			must(t, f.ADD(p))
			must(t, f.DEL(p))
		})
	}
}
