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
	Spoofed int // the source is not an address of the ENI: EC2's source/destination check
	NoHost  int // the destination is in the VPC or in a peer, but no ENI has it
	// The destination is an IPv4 address outside the VPC and its peers, but the source cannot reach the internet. This
	// source is in a subnet without a NAT gateway, and is not the primary address of an ENI with a public address.
	NoRoute int
}

// String returns for example "spoofed 0, ..., without a route 1": the counts in the order of the fields.
func (d Drops) String() string {
	return fmt.Sprintf("spoofed %d, to no host %d, without a route %d", d.Spoofed, d.NoHost, d.NoRoute)
}

// A drain is a veth pair whose far end ignores all packets. The kernel counts the packets that the fabric sends to a
// drain. To see the packets in the drain "spoofed", run: ip netns exec vpcsim0-vpc tcpdump -ni spoofed.
const (
	drainSpoofed = "spoofed"
	drainNoHost  = "no-host"
	drainNoRoute = "no-route"
)

// drainRoute returns a route that sends all packets for the prefix dst to a drain.
func drainRoute(drain string, dst netip.Prefix, table uint32) nl.Route {
	return farEndRoute(drain, dst, table)
}

// farEndRoute returns a route that sends all packets for the prefix dst to the far end of a link. The next hop of the
// route is an address that no host has. farEndNeighbours sets the MAC address of this next hop, so the kernel sends no
// neighbour solicitation.
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

// farEndNeighbours returns neighbour entries for the next hops that farEndRoute uses. The entries set the MAC address
// of these next hops.
func farEndNeighbours(dev, mac string) []nl.Object {
	return []nl.Object{nl.Neigh{Addr: farEnd, MAC: mac, Dev: dev}, nl.Neigh{Addr: farEnd6, MAC: mac, Dev: dev}}
}

// deafMAC is an address that the far end of a drain does not have, so the far end ignores the packets.
const deafMAC = "02:00:00:00:00:01"

func (f *Fabric) drainWiring() nl.Wiring {
	var w nl.Wiring
	add := func(objects ...nl.Object) {
		for _, o := range objects {
			w = append(w, nl.Step{NS: f.vpc.NS, Object: o})
		}
	}
	// Forwarding is off while the drains are created. A router reports on each new link that it is in the multicast
	// group of all routers (RFC 3810), and a drain would count this report.
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

// sentPackets returns, for each link of this thread's namespace, how many packets the kernel had to send. This number
// is the sum of the sent and the dropped packets: proc_net(5), net/dev.
func sentPackets() (map[string]int, error) {
	const sent, dropped, columns = 9, 11, 16 // the first eight columns are about received packets
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
