// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A fabric is a VPC of 10.0.0.0/16 and fd00::/32 in three namespaces. The router checks the sources of packets from
// ENIs. The node has its boot ENI and two ENIs for pods. The third namespace is a host outside of Kubernetes. An
// address of the router stands for the internet.
type fabric struct {
	t                   testing.TB
	router, node, other *nl.NS
}

const (
	nodeAddr  = "10.0.9.10"
	otherAddr = "10.0.2.20"
	internet  = "198.51.100.1"
)

// bare deletes all pairs of the node, and then the objects that serve all pods.
func (f *fabric) bare() {
	f.t.Helper()
	links, err := f.node.Links()
	must(f.t, err)
	for _, l := range links {
		if nl.IsPair(l.Group) {
			must(f.t, f.node.DelPair(l))
		}
	}
	if _, err := f.node.RemoveShared(); err != nil {
		f.t.Fatal(err)
	}
}

// sixth returns the IPv6 address that tests use together with an IPv4 address of the VPC.
func sixth(addr string) string {
	b := strings.Split(addr, ".")
	return "fd00:0:" + b[2] + "::" + b[3]
}

func newFabric(t testing.TB) *fabric {
	nltest.Need(t, "nftables")
	f := &fabric{t: t}
	f.router, _ = nltest.NS(t, "router")
	f.node, _ = nltest.NS(t, "node")
	f.other, _ = nltest.NS(t, "other")
	for _, n := range []*nl.NS{f.router, f.node, f.other} {
		// Without this, a new link has a tentative address for two seconds, and cannot ask for its neighbors.
		f.add(n, nl.Sysctl{Key: "net/ipv6/conf/default/accept_dad", Value: "0"})
	}
	f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(internet + "/32"), Dev: "lo"})
	f.add(f.router, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"},
		nl.Sysctl{Key: "net/ipv6/conf/all/forwarding", Value: "1"})
	f.plug("eni0", "10.0.9.1", f.node, "eth0", nodeAddr)
	f.plug("eni1", "10.0.1.1", f.node, "eth1", "")
	f.plug("eni2", "10.0.2.1", f.other, "eth0", otherAddr)
	f.plug("eni3", "10.0.3.1", f.node, "eth2", "")
	f.check("10.0.9.10/32", "eni0")
	f.check("10.0.1.48/28", "eni1", "pod1.*")
	f.check("10.0.3.48/28", "eni3", "pod3.*")
	return f
}

// check makes the router drop packets from these links whose source is outside of the prefix.
func (f *fabric) check(prefix string, links ...string) {
	f.t.Helper()
	p := netip.MustParsePrefix(prefix)
	// The IPv6 prefix has 16 free bits for each free byte of the IPv4 prefix, because sixth writes decimal bytes as
	// hexadecimal groups.
	p6 := netip.PrefixFrom(netip.MustParseAddr(sixth(p.Addr().String())), 128-(32-p.Bits())*2)
	local := []netip.Prefix{netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("::/128")}
	var rules []nl.NFRule
	for _, l := range links {
		rules = append(rules, nl.NFRule{nl.IIFName(l), nl.NotSAddr(p), nl.Drop()},
			nl.NFRule{nl.IIFName(l), nl.NotSAddr(append(local, p6)...), nl.Drop()})
	}
	f.add(f.router, nl.Table{Family: "inet", Name: "source_check_" + links[0], Chains: []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Rules: rules},
	}})
}

func (f *fabric) add(n *nl.NS, objects ...nl.Object) {
	f.t.Helper()
	for _, o := range objects {
		if err := (nl.Wiring{{NS: n, Object: o}}).Add(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// plug attaches an ENI to the namespace n. If addr is not empty, plug also gives the link this address and the default
// routes.
func (f *fabric) plug(eni, gateway string, n *nl.NS, link, addr string) {
	f.t.Helper()
	f.add(f.router, nl.Veth{Name: eni, Peer: link, PeerNS: n, MTU: 9001})
	for _, both := range [][2]string{{gateway, addr}, {sixth(gateway), ""}} {
		gw := netip.MustParseAddr(both[0])
		bits := gw.BitLen() * 3 / 4 // 24 of 32
		if gw.Is6() {
			bits = 64
		}
		f.add(f.router, nl.Addr{Prefix: netip.PrefixFrom(gw, bits), Dev: eni, NoDAD: true})
		if addr == "" {
			continue
		}
		own := netip.MustParseAddr(addr)
		if gw.Is6() {
			own = netip.MustParseAddr(sixth(addr))
		}
		f.add(n, nl.Addr{Prefix: netip.PrefixFrom(own, bits), Dev: link, NoDAD: true},
			nl.Route{Dst: netip.PrefixFrom(own, 0).Masked(), Via: gw, Dev: link})
	}
}

// A pod is the namespace of a container, and the data that the plugins get about it.
type pod struct {
	*nl.NS
	addr    string
	bare    string           // dump of the namespace without an eth0
	ipam    *types100.Result // result of the ipam plugin
	request plugin.Request[ptp.Config]
	result  *types100.Result
}

var config = ptp.Config{HostInterface: "eth0", ContainerInterface: "eth1", IPMasq: true}

// pod makes a namespace with an eth0 in no group of links, as pods of an earlier release or another plugin have it.
func (f *fabric) pod(name, addr string, more ...func(*types100.Result)) *pod {
	f.t.Helper()
	p := f.unconnected(name, addr, more...)
	f.connect(p, 0)
	return p
}

// grouped makes a namespace with an eth0 in the group of links that the ipvlan plugin uses.
func (f *fabric) grouped(name, addr string) *pod {
	f.t.Helper()
	p := f.unconnected(name, addr)
	f.connect(p, nl.PodGroup(p.request.Digest()))
	return p
}

// unconnected makes the namespace of a pod, without an eth0.
func (f *fabric) unconnected(name, addr string, more ...func(*types100.Result)) *pod {
	f.t.Helper()
	n, path := nltest.NS(f.t, name)
	p := &pod{NS: n, addr: addr, ipam: ipamResult(addr), bare: nltest.Dump(f.t, n)}
	r := &p.request
	r.Network, r.ContainerID, r.IfName, r.NetNS = "net", name, "eth0", path
	r.Config = config
	if err := r.Config.Validate(); err != nil {
		f.t.Fatal(err)
	}
	for _, f := range more {
		f(p.ipam)
	}
	return p
}

// connect gives a pod an eth0 by the ipvlan plugin. Without ipvlan in the kernel, eth0 is a veth to the router.
func (f *fabric) connect(p *pod, group uint32) {
	f.t.Helper()
	res := *p.ipam
	res.Interfaces = slices.Clone(p.ipam.Interfaces)
	p.request.Prev = &res
	if (nl.IPVlan{}).Supported(f.node) == nil {
		p.request.Prev = f.slave(p)
	} else {
		f.link(p, p.addr)
	}
	err := p.Do(func() error { return exec.Command("ip", "link", "set", "eth0", "group", fmt.Sprint(group)).Run() })
	if err != nil {
		f.t.Fatal(err)
	}
}

// slave runs the ADD of the ipvlan plugin.
func (f *fabric) slave(p *pod) (res *types100.Result) {
	r := plugin.Request[ipvlan.Config]{Network: "net", Attachment: p.request.Attachment, NetNS: p.request.NetNS,
		Prev: p.request.Prev}
	if err := f.node.Do(func() (err error) {
		res, err = ipvlan.Commands(nil).Add(f.t.Context(), &r)
		return err
	}); err != nil {
		f.t.Fatal(err)
	}
	return res
}

// link makes eth0 as a veth to the router, on a kernel without ipvlan.
func (f *fabric) link(p *pod, addr string) {
	eni := "pod" + addr[len("10.0."):]
	f.add(f.router, nl.Veth{Name: eni, Peer: "eth0", PeerNS: p.NS, MTU: 9001},
		nl.Sysctl{Key: "net/ipv4/conf/" + eni + "/proxy_arp", Value: "1"}) // so that other pods of the ENI reach p
	for _, c := range p.request.Prev.IPs {
		a, _ := netip.AddrFromSlice(c.Address.IP)
		gw, _ := netip.AddrFromSlice(c.Gateway)
		a, gw = a.Unmap(), gw.Unmap()
		bits, _ := c.Address.Mask.Size()
		f.add(f.router, nl.Addr{Prefix: netip.PrefixFrom(gw, gw.BitLen()), Dev: eni, NoDAD: true},
			nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: eni})
		if a.Is6() { // other pods of the ENI are reached through the router
			bits = 128
			f.add(p.NS, nl.Route{Dst: netip.PrefixFrom(gw, 128), Dev: "eth0"})
		}
		f.add(p.NS, nl.Addr{Prefix: netip.PrefixFrom(a, bits), Dev: "eth0", NoDAD: true})
	}
	for _, r := range p.request.Prev.Routes {
		dst, _ := netip.AddrFromSlice(r.Dst.IP)
		gw, _ := netip.AddrFromSlice(r.GW)
		bits, _ := r.Dst.Mask.Size()
		f.add(p.NS, nl.Route{Dst: netip.PrefixFrom(dst.Unmap(), bits), Via: gw.Unmap(), Dev: "eth0"})
	}
	p.request.Prev.Interfaces[0] = &types100.Interface{Name: "eth0", Sandbox: p.request.NetNS}
}

// ipamResult returns a result of the ipam plugin.
func ipamResult(addr string) *types100.Result {
	subnet, _ := strconv.Atoi(strings.Split(addr, ".")[2])
	gw := net.IPv4(10, 0, byte(subnet), 1)
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: map[int]string{1: "eth1", 3: "eth2", 9: "eth0"}[subnet]}},
		IPs:        []*types100.IPConfig{{Interface: new(0), Address: cidr(addr + "/24"), Gateway: gw}},
		Routes:     []*types.Route{{Dst: cidr("10.0.0.0/16"), GW: gw}},
	}
}

// dual adds an IPv6 address to a result of the ipam plugin.
func dual(res *types100.Result) {
	addr, gw := sixth(res.IPs[0].Address.IP.String()), net.ParseIP(sixth(res.IPs[0].Gateway.String()))
	res.IPs = append(res.IPs, &types100.IPConfig{Interface: new(0), Gateway: gw, Address: cidr(addr + "/64")})
	res.Routes = append(res.Routes, &types.Route{GW: gw, Dst: cidr("fd00::/32")})
}

func cidr(s string) net.IPNet {
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		panic(err)
	}
	return net.IPNet{IP: ip, Mask: n.Mask}
}

// in runs a command of the plugin on the node.
func (f *fabric) in(p *pod, command func(*plugin.Request[ptp.Config]) error) error {
	return f.node.Do(func() error { return command(&p.request) })
}

func (f *fabric) ADD(p *pod) error {
	return f.in(p, func(r *plugin.Request[ptp.Config]) (err error) {
		p.result, err = ptp.Commands().Add(f.t.Context(), r)
		return err
	})
}

func (f *fabric) DEL(p *pod) error {
	return f.in(p, func(r *plugin.Request[ptp.Config]) error { return ptp.Commands().Del(f.t.Context(), r) })
}

// CHECK runs CHECK with the final result of ADD.
func (f *fabric) CHECK(p *pod) error {
	return f.in(p, func(r *plugin.Request[ptp.Config]) error {
		r2 := *r
		r2.Prev = p.result
		return ptp.Commands().Check(f.t.Context(), &r2)
	})
}

func (f *fabric) GC(p *pod, valid ...plugin.Attachment) error {
	return f.in(p, func(r *plugin.Request[ptp.Config]) error {
		r2 := plugin.Request[ptp.Config]{Network: r.Network, Config: r.Config, Valid: valid}
		return ptp.Commands().GC(f.t.Context(), &r2)
	})
}
