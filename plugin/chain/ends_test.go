// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package chain

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest/trace"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
)

// TestEgressEnds kills the DEL of a client and of a router after each system call. Meanwhile, the client sends packets
// to a partner, or the router gets such packets through the tunnel. The partner must see only the router's address. So
// packets of a client must be in the tunnel, and packets of a router must leave through its ENI.
func TestEgressEnds(t *testing.T) {
	nltest.Need(t, "fou")
	for _, c := range []struct{ name, role, keys string }{
		{"client", "namespaces", ""},
		{"client whose default route is the VPC", "namespaces",
			`, "defaultRoute": "vpc", "hostCidrs": ["172.20.0.0/16"]`},
		{"router", "routers", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNode(t)
			n.must(nl.Wiring{{NS: n.vpc, Object: nl.Up{Dev: "eni1"}},
				{NS: n.vpc, Object: nl.Addr{Prefix: netip.MustParsePrefix("10.0.1.1/24"), Dev: "eni1"}}}.Add())
			var sent, right int
			points := trace.Everywhere(t, "DEL", func(t *testing.T, tr *trace.Trace) {
				s, r := victim{node: n.within(t), keys: egressing(c.role) + c.keys, verb: "DEL"}.ends(c.role, tr)
				sent, right = sent+s, right+r
			})
			t.Logf("DEL was killed at %d points: %d packets sent, %d left as they should, 0 otherwise", points,
				sent, right)
		})
	}
}

// partner is an address that is a destination of the egress.
var partner = netip.MustParseAddrPort("203.0.113.9:9")

// ends adds a pod, kills its DEL, and runs a second DEL. From the end of the ADD until the end of the second DEL, it
// sends packets.
func (v victim) ends(role string, tr *trace.Trace) (sent, right int) {
	v.Helper()
	pod, r := v.pod()
	result, err := v.ADD(r)
	v.must(err)
	own := result.IPs[0].Address.IP.String()
	v.watch(own, role)
	s := v.packets(role, pod, own)
	v.until("a packet leaves as it should", func() bool { return v.seen("right") > 0 })
	v.run(r, tr)
	killed := s.sent.Load()
	v.until("packets are sent after that", func() bool { return s.sent.Load() >= killed+5 })
	v.must(v.DEL(r))
	close(s.stop)
	<-s.done
	if wrong := v.seen("wrong"); wrong > 0 {
		v.Errorf("killed at %d: of %d packets, %d left by another way or with another source", tr.Kill,
			s.sent.Load(), wrong)
	}
	right = v.seen("right")
	for _, ns := range []*nl.NS{v.ns, v.vpc} {
		v.must(nl.Table{Family: "ip", Name: "partner"}.Del(ns))
	}
	nltest.Remove(v, r.NetNS)
	return int(s.sent.Load()), right
}

// watch makes the node and the VPC count the packets of the pod.
func (v victim) watch(own, role string) {
	v.Helper()
	it := nl.DAddr(netip.PrefixFrom(partner.Addr(), 32))
	for _, ns := range []*nl.NS{v.ns, v.vpc} {
		right, wrong := []nl.NFRule{{nl.DPort("udp", egress.DefaultPort, egress.DefaultPort),
			nl.Count()}}, []nl.NFRule{{it, nl.Count()}}
		if role == "routers" {
			right = []nl.NFRule{{nl.IIFName("none"), nl.Count()}}
			if ns == v.vpc {
				address := netip.MustParsePrefix(own + "/32")
				right, wrong = []nl.NFRule{{it, nl.SAddr(address), nl.Count()}}, []nl.NFRule{{it, nl.NotSAddr(address),
					nl.Count()}}
			}
		}
		v.must(nl.Wiring{{NS: ns, Object: nl.Table{Family: "ip", Name: "partner", Chains: []nl.Chain{
			{Name: "right", Type: "filter", Hook: "prerouting", Priority: -310, Rules: right},
			{Name: "wrong", Type: "filter", Hook: "prerouting", Priority: -309, Rules: wrong},
		}}}}.Add())
	}
}

// seen returns how many packets the chain with this name has counted on the node and in the VPC.
func (v victim) seen(chain string) (packets int) {
	v.Helper()
	for _, ns := range []*nl.NS{v.ns, v.vpc} {
		all, err := nl.Table{Family: "ip", Name: "partner"}.Counters(ns)
		v.must(err)
		for _, c := range all {
			if c.Chain == chain {
				packets += int(c.Packets)
			}
		}
	}
	return packets
}

func (v victim) until(what string, so func() bool) {
	v.Helper()
	for end := time.Now().Add(time.Minute); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			v.Fatalf("never: %s", what)
		}
	}
}

// A stream sends packets until it is stopped.
type stream struct {
	stop, done chan struct{}
	sent       atomic.Int64
}

// packets sends 300 packets in a second. A client sends them to the partner. For a router, the VPC sends them to the
// router through the tunnel. Each packet belongs to another connection.
func (v victim) packets(role string, pod *nl.NS, own string) *stream {
	v.Helper()
	from, to := pod, partner.String()
	if role == "routers" {
		from, to = v.vpc, net.JoinHostPort(own, "5555")
	}
	var c net.Conn
	v.must(from.Do(func() (err error) { c, err = net.Dial("udp", to); return err }))
	s := &stream{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer c.Close()
		for tick := time.NewTicker(time.Second / 300); ; {
			select {
			case <-s.stop:
				tick.Stop()
				return
			case <-tick.C:
				_, _ = c.Write(inner(uint16(s.sent.Add(1)))) // an error is an ICMP error about a closed path
			}
		}
	}()
	return s
}

// inner returns a UDP packet from the VPC to the partner, as the tunnel carries it. With another port, it belongs to
// another connection.
func inner(port uint16) []byte {
	b := make([]byte, 28)
	b[0], b[3], b[8], b[9] = 0x45, 28, 64, 17 // RFC 791
	copy(b[12:], []byte{10, 0, 1, 1})
	copy(b[16:], partner.Addr().AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum+sum>>16))
	binary.BigEndian.PutUint16(b[20:], 1024+port%40000)
	binary.BigEndian.PutUint16(b[22:], partner.Port())
	b[25] = 8 // RFC 768
	return b
}
