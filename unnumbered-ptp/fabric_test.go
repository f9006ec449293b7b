// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A fabric is a VPC of 10.0.0.0/16 in four namespaces: a router that checks the
// source of what comes from an ENI, a node with its boot ENI and one for pods, and
// a host that is not of Kubernetes. The internet is an address of the router.
type fabric struct {
	t                   testing.TB
	router, node, other *nl.NS
}

const (
	nodeAddr  = "10.0.9.10"
	otherAddr = "10.0.2.20"
	internet  = "198.51.100.1"
)

func newFabric(t testing.TB) *fabric {
	nltest.Need(t, "nftables")
	f := &fabric{t: t}
	f.router, _ = nltest.NS(t, "router")
	f.node, _ = nltest.NS(t, "node")
	f.other, _ = nltest.NS(t, "other")
	f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(internet + "/32"), Dev: "lo"})
	f.plug("eni0", "10.0.9.1/24", f.node, "eth0", nodeAddr+"/24")
	f.plug("eni1", "10.0.1.1/24", f.node, "eth1", "")
	f.plug("eni2", "10.0.2.1/24", f.other, "eth0", otherAddr+"/24")
	all := netip.MustParsePrefix("0.0.0.0/0")
	f.add(f.node, nl.Route{Dst: all, Via: netip.MustParseAddr("10.0.9.1"), Dev: "eth0"})
	f.add(f.other, nl.Route{Dst: all, Via: netip.MustParseAddr("10.0.2.1"), Dev: "eth0"})
	f.add(f.router, nl.Sysctl{Key: "net/ipv4/ip_forward", Value: "1"}, nl.Table{Family: "inet", Name: "source_check", Chains: []nl.Chain{
		{Name: "prerouting", Type: "filter", Hook: "prerouting", Rules: []nl.NFRule{
			{nl.IIFName("eni0"), nl.NotSAddr(netip.MustParsePrefix(nodeAddr + "/32")), nl.Drop()},
			{nl.IIFName("eni1"), nl.NotSAddr(netip.MustParsePrefix("10.0.1.48/28")), nl.Drop()},
			{nl.IIFName("pod*"), nl.NotSAddr(netip.MustParsePrefix("10.0.1.48/28")), nl.Drop()},
		}},
	}})
	return f
}

func (f *fabric) add(n *nl.NS, objects ...nl.Object) {
	f.t.Helper()
	for _, o := range objects {
		if err := (nl.Wiring{{NS: n, Object: o}}).Add(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// plug attaches an ENI.
func (f *fabric) plug(eni, gateway string, n *nl.NS, link, addr string) {
	f.t.Helper()
	f.add(f.router, nl.Veth{Name: eni, Peer: link, PeerNS: n, MTU: 9001},
		nl.Addr{Prefix: netip.MustParsePrefix(gateway), Dev: eni})
	if addr != "" {
		f.add(n, nl.Addr{Prefix: netip.MustParsePrefix(addr), Dev: link})
	}
}

// A pod is a container with what the plugins get to see of it.
type pod struct {
	*nl.NS
	request plugin.Request[ptp.Config]
	result  *types100.Result
}

var config = ptp.Config{HostInterface: "eth0", ContainerInterface: "eth1", IPMasq: true}

// pod makes a namespace and gives it an eth0 by the ipvlan plugin, or where the
// kernel has no ipvlan by a link of its own to the router.
func (f *fabric) pod(name, addr string, more ...func(*types100.Result)) *pod {
	f.t.Helper()
	n, path := nltest.NS(f.t, name)
	p := &pod{NS: n}
	r := &p.request
	r.Network, r.ContainerID, r.IfName, r.NetNS = "net", name, "eth0", path
	r.Config = config
	if err := r.Config.Validate(); err != nil {
		f.t.Fatal(err)
	}
	r.Prev = ipamResult(addr)
	for _, f := range more {
		f(r.Prev)
	}
	if (nl.IPVlan{}).Supported(f.node) == nil {
		r.Prev = f.slave(p)
	} else {
		f.link(p, addr)
	}
	return p
}

// slave calls the ipvlan plugin.
func (f *fabric) slave(p *pod) (res *types100.Result) {
	r := plugin.Request[ipvlan.Config]{Network: "net", Attachment: p.request.Attachment, NetNS: p.request.NetNS, Prev: p.request.Prev}
	if err := f.node.Do(func() (err error) { res, err = ipvlan.Commands().Add(f.t.Context(), &r); return err }); err != nil {
		f.t.Fatal(err)
	}
	return res
}

// link stands in for the ipvlan plugin.
func (f *fabric) link(p *pod, addr string) {
	eni := "pod" + addr[len("10.0.1."):]
	f.add(f.router, nl.Veth{Name: eni, Peer: "eth0", PeerNS: p.NS, MTU: 9001},
		nl.Sysctl{Key: "net/ipv4/conf/" + eni + "/proxy_arp", Value: "1"}) // for its siblings
	for _, c := range p.request.Prev.IPs {
		a, _ := netip.AddrFromSlice(c.Address.IP)
		gw, _ := netip.AddrFromSlice(c.Gateway)
		a, gw = a.Unmap(), gw.Unmap()
		bits, _ := c.Address.Mask.Size()
		f.add(f.router, nl.Addr{Prefix: netip.PrefixFrom(gw, gw.BitLen()), Dev: eni, NoDAD: true}, nl.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: eni})
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

// ipamResult is what the ipam plugin says.
func ipamResult(addr string) *types100.Result {
	cidr := func(s string) net.IPNet {
		ip, n, err := net.ParseCIDR(s)
		if err != nil {
			panic(err)
		}
		return net.IPNet{IP: ip, Mask: n.Mask}
	}
	gw := net.ParseIP("10.0.1.1")
	return &types100.Result{
		Interfaces: []*types100.Interface{{Name: "eth1"}},
		IPs:        []*types100.IPConfig{{Interface: new(0), Address: cidr(addr + "/24"), Gateway: gw}},
		Routes:     []*types.Route{{Dst: cidr("10.0.0.0/16"), GW: gw}},
	}
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

// CHECK is called with the final result.
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

// serve answers each caller with the address that it is seen to have, by TCP and UDP.
func serve(t testing.TB, n *nl.NS, addr string) {
	t.Helper()
	var l net.Listener
	var u net.PacketConn
	if err := n.Do(func() (err error) {
		if l, err = net.Listen("tcp", addr); err != nil {
			return err
		}
		u, err = net.ListenPacket("udp", addr)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, c.RemoteAddr().(*net.TCPAddr).IP)
			c.Close()
		}
	}()
	go func() {
		for b := make([]byte, 99); ; {
			_, from, err := u.ReadFrom(b)
			if err != nil {
				return
			}
			u.WriteTo([]byte(from.(*net.UDPAddr).IP.String()), from)
		}
	}()
}

// call connects and returns what the server says.
func call(n *nl.NS, network, to string) (string, error) {
	var c net.Conn
	if err := n.Do(func() (err error) { c, err = net.DialTimeout(network, to, 5*time.Second); return err }); err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if strings.HasPrefix(network, "udp") {
		c.Write([]byte("?"))
		b := make([]byte, 99)
		k, err := c.Read(b)
		return string(b[:k]), err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}
