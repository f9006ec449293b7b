// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/ipvlan"
)

// furtherAddr is an address of the node's other ENI for pods.
const furtherAddr = "10.0.3.50"

// and returns a function that adds a NIC with an address, and the matching IPv6 address, to a result of the ipam
// plugin.
func and(addr string) func(*types100.Result) {
	return func(res *types100.Result) {
		more := ipamResult(addr)
		dual(more)
		for _, c := range more.IPs {
			c.Interface = new(len(res.Interfaces))
			res.IPs = append(res.IPs, c)
		}
		res.Interfaces = append(res.Interfaces, more.Interfaces...)
	}
}

// several makes a pod with a NIC for each address, by one ADD of the ipvlan plugin.
func (f *fabric) several(name, addr string, more ...string) *pod {
	f.t.Helper()
	nltest.Need(f.t, "ipvlan")
	p := f.unconnected(name, addr, dual)
	for _, a := range more {
		and(a)(p.ipam)
	}
	f.slaves(p)
	return p
}

// attached makes another attachment of a pod, up to the ADD of the ipvlan plugin.
func (f *fabric) attached(p *pod, network, ifName, addr string) *pod {
	f.t.Helper()
	nltest.Need(f.t, "ipvlan")
	q := *p
	q.addr, q.ipam = addr, ipamResult(addr)
	dual(q.ipam)
	q.request.Network, q.request.IfName = network, ifName
	f.slaves(&q)
	return &q
}

// slaves runs the ADD of the ipvlan plugin.
func (f *fabric) slaves(p *pod) {
	f.t.Helper()
	must(f.t, f.ipvlan(p, p.ipam, func(c plugin.Commands[ipvlan.Config], r *plugin.Request[ipvlan.Config]) (err error) {
		p.request.Prev, err = c.Add(f.t.Context(), r)
		return err
	}))
}

// unslave runs the DEL of the ipvlan plugin.
func (f *fabric) unslave(p *pod) {
	f.t.Helper()
	must(f.t, f.ipvlan(p, p.request.Prev, func(c plugin.Commands[ipvlan.Config],
		r *plugin.Request[ipvlan.Config]) error {
		return c.Del(f.t.Context(), r)
	}))
}

func (f *fabric) ipvlan(
	p *pod, prev *types100.Result, command func(plugin.Commands[ipvlan.Config], *plugin.Request[ipvlan.Config]) error,
) error {
	r := plugin.Request[ipvlan.Config]{Network: p.request.Network, Attachment: p.request.Attachment,
		NetNS: p.request.NetNS, Prev: prev}
	must(f.t, r.Config.Validate())
	return f.node.Do(func() error { return command(ipvlan.Commands(nil), &r) })
}

// delete runs the DELs of both plugins, twice.
func (f *fabric) delete(p *pod, prev *types100.Result) {
	f.t.Helper()
	p.request.Prev = prev
	for range 2 {
		must(f.t, f.DEL(p))
		f.unslave(p)
	}
}

// reached checks that the node and the other host reach an address of a pod, in both families. As the source, the pod
// must see the address of the node or of the other host.
func (f *fabric) reached(p *pod, addr string) {
	f.t.Helper()
	for who, n := range map[string]*nl.NS{otherAddr: f.other, nodeAddr: f.node} {
		for to, want := range map[string]string{addr: who, sixth(addr): sixth(who)} {
			got, err := call(n, "tcp", net.JoinHostPort(to, "8080"))
			if errors.Is(err, unix.EHOSTUNREACH) { // the address may not be ready yet: see Ping of package vpcsim
				f.t.Logf("%s calls %s again: %v", who, to, err)
				got, err = call(n, "tcp", net.JoinHostPort(to, "8080"))
			}
			if err != nil || netip.MustParseAddr(got) != netip.MustParseAddr(want) {
				f.t.Errorf("%s calls %s: the pod has seen %s, want %s: %v", who, to, got, want, err)
			}
		}
	}
}

// pairs returns the number of our veth pairs on the node.
func (f *fabric) pairs() (n int) {
	links, err := f.node.Links()
	must(f.t, err)
	for _, l := range links {
		if l.Group == nl.OwnGroup {
			n++
		}
	}
	return n
}

// TestFurtherNICs: one ADD makes three NICs. The node has routes only to the addresses of the first NIC. The node
// reaches the other NICs through the VPC.
func TestFurtherNICs(t *testing.T) {
	for _, loop := range loopsOfAll {
		t.Run(loop, func(t *testing.T) {
			f := newFabric(t)
			p := f.several("pod1", "10.0.1.50", furtherAddr, "10.0.1.51")
			p.request.Config.ServiceLoop = loop
			must(t, f.ADD(p))
			for range 2 {
				must(t, f.CHECK(p))
				must(t, f.ADD(p))
			}
			if d := nltest.Dump(t, f.node); strings.Contains(d, furtherAddr) || strings.Contains(d, "10.0.1.51") ||
				strings.Contains(d, sixth(furtherAddr)) {
				t.Errorf("the node knows further NICs:\n%s", d)
			}
			serve(t, p.NS, ":8080")
			for _, addr := range []string{"10.0.1.50", furtherAddr, "10.0.1.51"} {
				f.reached(p, addr)
			}
			f.delete(p, p.result)
			same(t, "DEL left something in the pod", p.bare, nltest.Dump(t, p.NS))
		})
	}
}

// bound sends a datagram from a pod to port 8099 of the address to. The source of the datagram is the pod's address
// from.
func bound(p *pod, from, to, text string) error {
	return p.Do(func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		c, err := d.Dial("udp", net.JoinHostPort(to, "8099"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	})
}

// TestFurtherMetadata sends to the metadata service through a further NIC, of the same ADD or of another attachment. By
// default, the datagrams must not arrive.
func TestFurtherMetadata(t *testing.T) {
	for name, c := range map[string]struct {
		block   *bool
		another bool
	}{
		"same ADD":             {nil, false},
		"same ADD, blocked":    {new(true), false},
		"same ADD, allowed":    {new(false), false},
		"another ADD":          {nil, true},
		"another ADD, blocked": {new(true), true},
		"another ADD, allowed": {new(false), true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			h := f.metadata(t)
			var p *pod
			link := "eth2"
			if c.another {
				p = f.several("pod1", "10.0.1.50")
				must(t, f.ADD(p))
				link = "net1"
				p = f.attached(p, "second", link, furtherAddr)
			} else {
				p = f.several("pod1", "10.0.1.50", furtherAddr)
			}
			p.request.Config.BlockInstanceMetadata = c.block
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			allowed := c.block != nil && !*c.block
			for _, to := range []string{metadata4, metadata6} {
				from := furtherAddr
				if to == metadata6 {
					from = sixth(furtherAddr)
				}
				err := bound(p, from, to, "bound "+to)
				if allowed {
					must(t, err)
					h.until(t, "bound "+to, "")
					continue
				}
				if !errors.Is(err, unix.EACCES) {
					t.Errorf("%s from %s: %v, want permission denied", to, from, err)
				}
				_ = tell(p.NS, link, to, "link "+to) // there may be no route
				must(t, bound(p, furtherAddr, "10.0.3.1", "end of "+to))
				if h.until(t, "end of "+to, "link "+to) {
					t.Errorf("%s by %s: reached", to, link)
				}
			}
			if allowed {
				return
			}
			nltest.Shell(t, p.NS, "tc filter del dev "+link+" egress pref 72")
			// Without blockInstanceMetadata in the configuration, CHECK of a further attachment cannot know whether the
			// NIC needs a filter.
			if err := f.CHECK(p); (err == nil) != (c.another && c.block == nil) {
				t.Errorf("CHECK without the filter: %v", err)
			}
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			nic := 1
			if c.another {
				nic = 0
			}
			nltest.Shell(t, p.NS, fmt.Sprintf("ip route del prohibit %s table %d", metadata4,
				nl.FurtherTable(nl.PodGroup(p.request.Digest()), nic)))
			if f.CHECK(p) == nil {
				t.Error("CHECK is content without the route")
			}
		})
	}
}

// TestFurtherBandwidth: the limit applies to all NICs of an ADD together.
func TestFurtherBandwidth(t *testing.T) {
	f := newFabric(t)
	p := f.several("pod1", "10.0.1.50", furtherAddr)
	p.request.Config.RuntimeConfig.Bandwidth.IngressRate = 8_000_000
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	q := f.attached(p, "second", "net1", "10.0.3.51")
	q.request.Config.RuntimeConfig.Bandwidth.IngressRate = 0
	q.request.Config.RuntimeConfig.Bandwidth.EgressRate = 16_000_000
	must(t, f.ADD(q))
	must(t, f.CHECK(q))
	limit := nl.Limit{Devs: []string{"eth0", "eth1", "eth2"}, Rate: 1_000_000, Burst: 128 << 10}
	must(t, limit.Check(p.NS))
	limit.Devs = []string{"net1"}
	if limit.Check(p.NS) == nil {
		t.Error("the other attachment has the limit, too")
	}
	must(t, nl.Limit{Devs: limit.Devs, Rate: 2_000_000, Burst: 200_000, Egress: true}.Check(p.NS))
	for l, of := range map[string]*pod{"eth2 ingress": p, "net1 egress": q} {
		nltest.Shell(t, p.NS, "tc filter del dev "+l+" pref 73")
		if f.CHECK(of) == nil {
			t.Errorf("CHECK is content without the limit at %s", l)
		}
		must(t, f.ADD(of))
		must(t, f.CHECK(of))
	}
}

// TestFurtherAttachments: a pod gets another network of ours, and another interface of its first network. Neither gets
// a pair. The attachments are deleted in any order, and the remaining ones still work.
func TestFurtherAttachments(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}, {1, 2, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			f := newFabric(t)
			first := f.several("pod1", "10.0.1.50")
			rich(&first.request)
			block := first.request.Config
			must(t, f.ADD(first))
			pods := []*pod{first, f.attached(first, "second", "net1", furtherAddr),
				f.attached(first, "net", "net2", "10.0.1.51")}
			during := nltest.Dump(t, f.node)
			for _, p := range pods[1:] {
				p.request.Config = block
				for range 2 {
					must(t, f.ADD(p))
					must(t, f.CHECK(p))
				}
				if len(p.result.Interfaces) != 1 || p.result.Interfaces[0].Name != p.request.IfName {
					t.Errorf("the result of %s: %v", p.request.IfName, p.result.Interfaces)
				}
			}
			same(t, "a further attachment changed the node", during, nltest.Dump(t, f.node))
			serve(t, first.NS, ":8080")
			gone := map[int]bool{}
			for turn, i := range order {
				for k, p := range pods {
					if gone[k] {
						continue
					}
					must(t, f.CHECK(p))
					if k > 0 {
						f.reached(p, p.addr)
					}
				}
				must(t, f.GC(first, first.request.Attachment))
				prev := pods[i].result
				if turn == 1 {
					prev = nil
				}
				f.delete(pods[i], prev)
				gone[i] = true
				if n := f.pairs(); (n == 0) != gone[0] {
					t.Errorf("%d pairs after DEL of %s", n, pods[i].request.IfName)
				}
			}
			same(t, "DEL left something in the pod", first.bare, nltest.Dump(t, first.NS))
		})
	}
}

// TestSecondToOthers: another plugin has made a pod's first network, with the default route. The ADD of this plugin
// fails, and the error names the plugins of a chain without this plugin. By such a chain, the pod reaches the VPC
// through its ENI.
func TestSecondToOthers(t *testing.T) {
	nltest.Need(t, "ipvlan")
	f := newFabric(t)
	p := f.unconnected("pod1", "10.0.1.50")
	f.add(p.NS, nl.Veth{Name: "eth0", Peer: "far", PeerNS: p.NS}, nl.Up{Dev: "eth0"}, nl.Up{Dev: "far"},
		nl.Addr{Prefix: netip.MustParsePrefix("10.244.0.5/24"), Dev: "eth0"},
		nl.Route{Dst: nl.IPv4.Everywhere(), Via: netip.MustParseAddr("10.244.0.1"), Dev: "eth0"})
	p.request.IfName = "net1"
	f.slaves(p)
	err := f.ADD(p)
	if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeInvalid ||
		!strings.Contains(e.Hint, "chain only cni-ipvlan-vpc-k8s-ipam") || !strings.Contains(e.Error(), "by eth0") {
		t.Errorf("ADD: %v", err)
	}
	if f.pairs() > 0 {
		t.Error("the pair stays")
	}
	serve(t, f.other, ":8080")
	if got, err := call(p.NS, "tcp", otherAddr+":8080"); got != p.addr || err != nil {
		t.Errorf("the VPC has seen %q: %v", got, err)
	}
}

// TestFurtherPranks: a pod with further NICs changes its own namespace. The DELs of its attachments succeed, and
// nothing of these attachments stays on the node.
func TestFurtherPranks(t *testing.T) {
	f, other := preparedTable(t)
	before := nltest.Dump(t, f.node)
	n := 1
	for name, prank := range pranks {
		t.Run(name, func(t *testing.T) {
			g := &fabric{t, f.router, f.node, f.other}
			n++
			p := g.several("pod2", fmt.Sprint("10.0.1.", n), fmt.Sprint("10.0.3.", n))
			rich(&p.request)
			q := g.attached(p, "second", "net1", fmt.Sprint("10.0.3.", 100+n))
			must(t, g.ADD(p))
			must(t, g.ADD(q))
			_, elsewhere := nltest.NS(t, "elsewhere")
			stage(t, prank, p, nl.PodGroup(other.request.Digest()), elsewhere)
			all := []*pod{p, q}
			if n%2 == 0 {
				all = []*pod{q, p}
			}
			for _, victim := range all {
				g.delete(victim, victim.result)
				g.delete(victim, nil)
			}
			same(t, "DEL left something on the node", before, nltest.Dump(t, f.node))
		})
	}
}
