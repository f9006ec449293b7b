// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package vpcsim

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// Drops says how many packets the fabric has dropped for each reason.
type Drops struct {
	Spoofed int // EC2's source/destination check has failed: the sending ENI does not have the source address
	NoHost  int // the destination is in the VPC or in a peer, but no ENI has it
	// The source cannot reach the internet by IPv4: the source's subnet has no NAT gateway, and the source is not the
	// primary address of an ENI with a public address.
	NoRoute int
}

// String returns the counts as a text, for example "spoofed 0, to no host 0, without a route 1".
func (d Drops) String() string {
	return fmt.Sprintf("spoofed %d, to no host %d, without a route %d", d.Spoofed, d.NoHost, d.NoRoute)
}

// The names of the drains. A drain is a veth pair whose far end ignores all packets. To drop a packet, the fabric sends
// it to a drain, because the kernel then counts the packet. The command "ip netns exec vpcsim0-vpc tcpdump -ni spoofed"
// shows the packets in the drain "spoofed".
const (
	drainSpoofed = "spoofed"
	drainNoHost  = "no-host"
	drainNoRoute = "no-route"
)

// drainRoute returns a route that sends all packets for the prefix dst to a drain.
func drainRoute(drain string, dst netip.Prefix, table uint32) nl.Route {
	return farEndRoute(drain, dst, table)
}

// farEndRoute returns a route that sends all packets for the prefix dst to the far end of a link. No host has the
// address of the next hop. farEndNeighbours returns the neighbour entry for this address.
func farEndRoute(dev string, dst netip.Prefix, table uint32) nl.Route {
	via := farEnd
	if dst.Addr().Is6() {
		via = farEnd6
	}
	return nl.Route{Dst: dst, Via: via, Dev: dev, Table: table, OnLink: true}
}

var (
	farEnd  = netip.MustParseAddr("192.0.2.254")
	farEnd6 = netip.MustParseAddr("fe80::ec2")
	allIPv4 = netip.MustParsePrefix("0.0.0.0/0")
	allIPv6 = netip.MustParsePrefix("::/0")
)

// farEndNeighbours returns neighbour entries with this MAC address for the next hops that farEndRoute uses.
func farEndNeighbours(dev, mac string) []nl.Object {
	return []nl.Object{nl.Neigh{Addr: farEnd, MAC: mac, Dev: dev}, nl.Neigh{Addr: farEnd6, MAC: mac, Dev: dev}}
}

// deafMAC is the destination MAC address of packets to a drain. The far end ignores the packets, because it does not
// have this address.
const deafMAC = "02:00:00:00:00:01"

func (f *Fabric) drainWiring() nl.Wiring {
	var w nl.Wiring
	add := func(objects ...nl.Object) {
		for _, o := range objects {
			w = append(w, nl.Step{NS: f.vpc.NS, Object: o})
		}
	}
	// Switch forwarding off while the drains are created. With forwarding, the kernel joins the multicast group of all
	// routers on each new link, and sends a report through this link (RFC 3810). A drain would count this report.
	const router = "net/ipv6/conf/default/forwarding"
	add(nl.Sysctl{Key: router, Value: "0"})
	for _, name := range []string{drainSpoofed, drainNoHost, drainNoRoute} {
		add(nl.Veth{Name: name, Peer: "x-" + name, PeerNS: f.vpc.NS, MTU: vpcMTU})
		add(farEndNeighbours(name, deafMAC)...)
	}
	add(nl.Sysctl{Key: router, Value: "1"},
		drainRoute(drainSpoofed, allIPv4, tableSpoofed), drainRoute(drainSpoofed, allIPv6, tableSpoofed))
	return w
}

// Drops returns the numbers of packets that the fabric has dropped since New.
func (f *Fabric) Drops() (Drops, error) {
	var sent map[string]int
	err := f.vpc.Do(func() (err error) {
		sent, err = sentPackets()
		return err
	})
	if err != nil {
		return Drops{}, fmt.Errorf("count what the fabric dropped: %w", err)
	}
	return Drops{Spoofed: sent[drainSpoofed], NoHost: sent[drainNoHost], NoRoute: sent[drainNoRoute]}, nil
}

// sentPackets returns, for each link of this thread's namespace, how many packets the kernel has sent or dropped
// (proc_net(5), net/dev).
func sentPackets() (map[string]int, error) {
	const sent, dropped, columns = 9, 11, 16 // indices of columns; the first eight columns are about received packets
	b, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, err
	}
	packets := map[string]int{}
	for line := range strings.Lines(string(b)) {
		name, counters, ok := strings.Cut(line, ":")
		c := strings.Fields(counters)
		if !ok || len(c) < columns {
			continue
		}
		for _, n := range []string{c[sent], c[dropped]} {
			v, err := strconv.Atoi(n)
			if err != nil {
				return nil, fmt.Errorf("net/dev: %w", err)
			}
			packets[strings.TrimSpace(name)] += v
		}
	}
	return packets, nil
}
