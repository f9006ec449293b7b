// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// router6 is the router's IPv6 address on each of its links.
const router6 = "fe80:ec2::1"

// routed makes a namespace without links for a routed pod. It makes the router send packets for the pod to the MAC
// address of the pod's ENI.
func (f *fabric) routed(name, addr string, more ...func(*types100.Result)) *pod {
	f.t.Helper()
	p := f.unconnected(name, addr, more...)
	res := *p.ipam
	res.Interfaces = append(slices.Clone(res.Interfaces), &types100.Interface{Name: "eth0", Sandbox: p.request.NetNS})
	dev := res.Interfaces[0].Name
	res.IPs = nil
	for _, c := range p.ipam.IPs {
		a, _ := plugin.Addr(c.Address.IP)
		own := *c
		own.Interface = new(1)
		own.Address.Mask = net.CIDRMask(a.BitLen(), a.BitLen())
		if a.Is6() {
			own.Gateway = net.ParseIP(router6)
		}
		res.IPs = append(res.IPs, &own)
		f.leads(a, dev)
	}
	primary := map[string]string{"eth0": nodeAddr, "eth1": "10.0.1.49", "eth2": "10.0.3.49"}[dev]
	res.IPs = append(res.IPs, &types100.IPConfig{Interface: new(0), Address: cidr(primary + "/24")})
	p.request.Prev = &res
	return p
}

// leads makes the router send packets for an address to an ENI of the node.
func (f *fabric) leads(a netip.Addr, dev string) {
	f.t.Helper()
	eni, err := f.node.LinkByName(dev)
	must(f.t, err)
	port := map[string]string{"eth0": "eni0", "eth1": "eni1", "eth2": "eni3"}[dev]
	f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(router6 + "/64"), Dev: port, NoDAD: true},
		nl.Neigh{Addr: a, MAC: eni.MAC, Dev: port})
}

// routedAgain returns a fabric, and a routed pod without links. On the node of this fabric, another routed pod was
// added and deleted.
func routedAgain(t *testing.T, more ...func(*types100.Result)) (*fabric, *pod) {
	t.Helper()
	f := newFabric(t)
	first := f.routed("first", "10.0.1.52", more...)
	must(t, f.ADD(first))
	must(t, f.DEL(first))
	return f, f.routed("pod1", pod1Addr, more...)
}

// veth returns the name of the node's end of the pod's pair.
func (p *pod) veth() string { return ptp.VethName("net", p.request.Attachment) }

// families has the families that a routed pod can have.
var families = map[string][]func(*types100.Result){"IPv4": nil, "dual": {dual}, "IPv6 alone": {only6}}

// TestRoutedLifecycle adds, checks and deletes a routed pod, each twice.
func TestRoutedLifecycle(t *testing.T) {
	for name, more := range families {
		t.Run(name, func(t *testing.T) {
			f, p := routedAgain(t, more...)
			dump := func() string { return f.nft("list", "ruleset") + nltest.Dump(t, f.node, p.NS) }
			before := dump()
			must(t, f.ADD(p))
			during, result := dump(), p.result
			must(t, f.CHECK(p))
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			same(t, "the second ADD changed something", during, dump())
			p.request.Prev = result // as libcni calls DEL
			must(t, f.DEL(p))
			same(t, "DEL left something", before, dump())
			if f.CHECK(p) == nil {
				t.Error("CHECK after DEL: no error")
			}
			must(t, f.DEL(p))
			same(t, "the second DEL changed something", before, dump())
		})
	}
}

// TestRoutedDelWithout calls DEL of a routed pod without prevResult, without a namespace, and without both.
func TestRoutedDelWithout(t *testing.T) {
	f, p := routedAgain(t, dual)
	p.request.Config.BlockInstanceMetadata = new(true)
	before, prev, path := nltest.Dump(t, f.node, p.NS), p.request.Prev, p.request.NetNS
	for name, without := range map[string]func(){
		"prevResult":             func() { p.request.Prev = nil },
		"a namespace":            func() { p.request.NetNS = "" },
		"its namespace":          func() { p.request.NetNS = "/run/netns/absent" },
		"namespace and result":   func() { p.request.NetNS, p.request.Prev = "", nil },
		"the ipam plugin's part": func() { p.request.Prev = p.result },
	} {
		p.request.Prev, p.request.NetNS = prev, path
		must(t, f.ADD(p))
		must(t, f.CHECK(p))
		without()
		for range 2 {
			must(t, f.DEL(p))
			p.request.NetNS = path
			must(t, f.DEL(p))
			same(t, "DEL without "+name, before, nltest.Dump(t, f.node, p.NS))
		}
	}
}

// TestRoutedOrNothing: ADD of a routed pod fails. Nothing of the pod remains, and the error names the cause.
func TestRoutedOrNothing(t *testing.T) {
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	for name, x := range map[string]struct {
		spoil func(f *fabric, p *pod)
		want  string
	}{
		"an eth0 of others": {func(f *fabric, p *pod) {
			f.add(f.other, nl.Veth{Name: "others", Peer: "eth0", PeerNS: p.NS})
		}, "file exists"},
		"a default route of others": {func(f *fabric, p *pod) {
			f.add(f.other, nl.Veth{Name: "others", Peer: "net1", PeerNS: p.NS})
			f.add(p.NS, nl.Route{Dst: everywhere, Dev: "net1"})
		}, "the pod has a default route by net1, which belongs to another network"},
		"no ENI": {func(_ *fabric, p *pod) {
			p.request.Prev.Interfaces[0] = &types100.Interface{Name: "eth7"}
		}, "find the ENI's link: link eth7: no such device"},
		"another network of ours": {func(f *fabric, p *pod) {
			f.add(f.other, nl.Veth{Name: "others", Peer: "net1", PeerNS: p.NS,
				PeerGroup: nl.PodGroup([]byte("another1"))})
		}, "the pod already has another network of this plugin"},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := routedAgain(t)
			x.spoil(f, p)
			before := nltest.Dump(t, f.node, p.NS)
			if err := f.ADD(p); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v, want %q", err, x.want)
			}
			same(t, "a failed ADD left something", before, nltest.Dump(t, f.node, p.NS))
			must(t, f.DEL(p))
			same(t, "DEL after it", before, nltest.Dump(t, f.node, p.NS))
		})
	}
}

// TestRoutedTraffic sends packets from routed pods and to them, and checks the source that each receiver sees.
func TestRoutedTraffic(t *testing.T) {
	for name, strict := range map[string][]nl.Object{"": nil, "strict rp_filter": {
		nl.Sysctl{Key: "net/ipv4/conf/all/rp_filter", Value: "1"},
		nl.Sysctl{Key: "net/ipv4/conf/default/rp_filter", Value: "1"}}} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			f.add(f.node, strict...)
			pods := f.routedPods(dual)
			for _, n := range []*nl.NS{pods[0].NS, pods[1].NS, pods[2].NS, f.node, f.other} {
				serve(t, n, ":8080")
			}
			serve(t, f.router, internet+":443")
			for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
				for _, c := range []struct {
					from     *nl.NS
					to, seen string
				}{
					{pods[0].NS, otherAddr + ":8080", pod1Addr},
					{f.other, pod1Addr + ":8080", otherAddr},
					{pods[0].NS, pod2Addr + ":8080", pod1Addr},
					{pods[0].NS, pod3Addr + ":8080", pod1Addr},
					{pods[2].NS, pod1Addr + ":8080", pod3Addr},
					{pods[2].NS, otherAddr + ":8080", pod3Addr},
					{pods[0].NS, pod1Addr + ":8080", pod1Addr},
					{pods[0].NS, nodeAddr + ":8080", pod1Addr},
					{f.node, pod1Addr + ":8080", nodeAddr},
					{pods[0].NS, internet + ":443", nodeAddr},
				} {
					if c.to == internet+":443" && network[3] == '6' {
						continue // the internet has no routes to the fabric's IPv6 addresses
					}
					seen, err := call(c.from, network, dialled(network, c.to))
					if want := seenAs(network, c.seen); err != nil || seen != want {
						t.Errorf("%s to %s (%s): seen as %q, want %q; %v", c.from.Name, c.to, network, seen, want, err)
					}
				}
			}
		})
	}
}

// routedPods adds three routed pods: two on one ENI, and one on another ENI.
func (f *fabric) routedPods(more ...func(*types100.Result)) (pods []*pod) {
	f.t.Helper()
	for i, addr := range []string{pod1Addr, pod2Addr, pod3Addr} {
		p := f.routed([]string{"pod1", "pod2", "pod3"}[i], addr, more...)
		must(f.t, f.ADD(p))
		must(f.t, f.CHECK(p))
		p.awaitAddrs(f.t)
		pods = append(pods, p)
	}
	return pods
}

// awaitAddrs waits until the pod's namespace accepts packets for its addresses. The kernel adds the local route of a
// new IPv6 address from a work queue (addrconf_dad_work), even without duplicate address detection. A datagram that
// arrives before this route exists is lost.
func (p *pod) awaitAddrs(t testing.TB) {
	t.Helper()
	for _, c := range p.ipam.IPs {
		a, _ := plugin.Addr(c.Address.IP)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			dev, err := ask.Leaves(p.NS, a, a)
			if dev == "lo" {
				break
			}
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("%s sends what is for itself by %q, %v", a, dev, err)
			}
		}
	}
}

// TestRoutedSandbox: the link of a routed pod has no qdisc, so that a runtime for virtual machines can add its own.
// Only a block of the metadata service adds a qdisc. By default, the block for IPv6 does.
func TestRoutedSandbox(t *testing.T) {
	nltest.Need(t, "police")
	byENI := func(res *types100.Result) {
		dual(res)
		res.Routes = append(res.Routes, &types.Route{Dst: cidr("::/0")})
	}
	for _, c := range []struct {
		name  string
		more  []func(*types100.Result)
		block *bool
		free  bool
	}{
		{"IPv4", nil, nil, true}, {"IPv6", []func(*types100.Result){byENI}, nil, false},
		{"unblocked", []func(*types100.Result){byENI}, new(false), true}, {"blocked", nil, new(true), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric(t)
			p := f.configured(f.routed("pod1", pod1Addr, c.more...), func(conf *ptp.Config) {
				conf.BlockInstanceMetadata = c.block
			})
			must(t, f.ADD(p))
			err := p.NS.Do(func() error {
				return exec.Command("tc", "qdisc", "add", "dev", "eth0", "ingress").Run()
			})
			if (err == nil) != c.free {
				t.Errorf("another qdisc: %v", err)
			}
		})
	}
}
