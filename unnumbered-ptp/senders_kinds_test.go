// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// senders runs test with a pod of each kind. The parameter veth of test is the pod's link to the node.
func senders(t *testing.T, test func(t *testing.T, f *fabric, p *pod, veth string)) {
	for _, loop := range []string{"redirect", "masquerade", "none"} {
		t.Run(loop, func(t *testing.T) {
			s := newScene(t, [2]string{loop, loop})
			test(t, s.fabric, s.pods[0], "eth1")
		})
	}
	t.Run("routed", func(t *testing.T) {
		f := newFabric(t)
		f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(internet6 + "/128"), Dev: "lo", NoDAD: true})
		f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
		pods := f.routedPods(dual)
		serve(t, pods[0].NS, ":8080")
		test(t, f, pods[0], "eth0")
	})
}

// dropped returns how many packets with false sources the node has dropped.
func (f *fabric) dropped() (n uint64) {
	f.t.Helper()
	for _, table := range []string{nl.OwnTableOf("net"), nl.RoutedTableOf("net"), nl.ENITable} {
		counted, err := nl.Table{Family: "inet", Name: table}.Counters(f.node)
		if !errors.Is(err, fs.ErrNotExist) {
			must(f.t, err)
		}
		for _, c := range counted {
			if c.Chain == "senders" || c.Chain == "prerouting" || strings.HasPrefix(c.Chain, "mark_") {
				n += uint64(c.Packets)
			}
		}
	}
	return n
}

// TestSendersPass: the node drops no packet of DHCP or of neighbour discovery, and none to a multicast group. It also
// drops no packet to NodeLocal DNSCache, which the node does not track, and none to a Service whose endpoint is the pod
// itself. The node has a rule for packets from the pod's address, as amazon-vpc-cni-k8s adds it for its pods.
func TestSendersPass(t *testing.T) {
	const dns4, dns6 = nodeLocalDNS, "fd77::53"
	senders(t, func(t *testing.T, f *fabric, p *pod, veth string) {
		f.open(p)
		iproute(t, f.node, fromRules(pod1Addr))
		f.nft(`table inet raw { chain prerouting { type filter hook prerouting priority raw;
			ip daddr ` + dns4 + ` notrack; ip6 daddr ` + dns6 + ` notrack; }; }`)
		f.add(f.node, nl.Veth{Name: "nodelocaldns", Peer: "peer0", PeerNS: f.node})
		for _, dns := range []string{dns4, dns6} {
			a := netip.MustParseAddr(dns)
			f.add(f.node, nl.Addr{Prefix: nl.HostPrefix(a), Dev: "nodelocaldns", NoDAD: true})
			serve(t, f.node, netip.AddrPortFrom(a, 53).String())
		}
		at := hear(t, f.node)
		link, err := p.LinkByName(veth)
		must(t, err)
		everyone := netip.MustParseAddr("255.255.255.255")
		must(t, p.emit(link, "ff:ff:ff:ff:ff:ff", netip.IPv4Unspecified(), everyone, "DHCP"))
		at.until(t, "DHCP", "")
		must(t, tell(p.NS, veth, "224.0.0.251", "to a group"))
		nltest.Shell(t, p.NS, "ip -4 neigh flush all; ip -6 neigh flush all")
		nltest.Shell(t, f.node, "ip -4 neigh flush all; ip -6 neigh flush all")
		for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
			dns := dns4
			if network[3] == '6' {
				dns = dns6
			}
			for _, to := range []string{netip.AddrPortFrom(netip.MustParseAddr(dns), 53).String(),
				dialled(network, "172.20.0.12:80"), dialled(network, nodeAddr+":30080")} {
				if _, err := call(p.NS, network, to); err != nil {
					t.Errorf("%s to %s: %v", network, to, err)
				}
			}
		}
		if n := f.dropped(); n > 0 {
			t.Errorf("the node has dropped %d packets", n)
		}
	})
}

// TestForgedSegment: TCP packets that do not begin a connection also need the pod's own source. The node drops those
// with the source of another host. The test counts packets before kube-proxy's rule, which also drops such packets.
func TestForgedSegment(t *testing.T) {
	senders(t, func(t *testing.T, f *fabric, p *pod, veth string) {
		near := p.veth()
		f.open(p)
		f.add(p.NS, nl.Route{Dst: netip.MustParsePrefix(internet6 + "/128"), Dev: veth,
			Via: netip.MustParseAddr(map[string]string{"eth0": "fe80::1", "eth1": sixth(nodeAddr)}[veth])})
		passed := nl.Table{Family: "inet", Name: "passed", Chains: []nl.Chain{{Name: "forward", Type: "filter",
			Hook: "forward", Priority: -310, Rules: []nl.NFRule{{nl.IIFName(near), nl.L4Proto("tcp"), nl.Count()}}}}}
		f.add(f.node, passed)
		sent := 0
		for _, network := range []string{"tcp4", "tcp6"} {
			to := netip.MustParseAddrPort(dialled(network, internet+":8080"))
			for _, flags := range []byte{rst, syn | ack, fin | ack, 0} {
				for _, from := range []string{otherAddr, pod2Addr, pod1Addr} {
					p.segment(t, netip.MustParseAddrPort(dialled(network, from+":9999")), to, flags)
				}
				sent++
			}
		}
		counted, err := passed.Counters(f.node)
		must(t, err)
		if n := f.dropped(); n != uint64(2*sent) || int(counted[0].Packets) != sent {
			t.Errorf("of %d forged segments, the node has dropped %d; %d have passed, want %d", 2*sent, n,
				counted[0].Packets, sent)
		}
	})
}

// These are the flags of a TCP segment.
const fin, syn, rst, ack = 1, 2, 4, 16

// segment sends a TCP segment without data.
func (p *pod) segment(t *testing.T, from, to netip.AddrPort, flags byte) {
	t.Helper()
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h, from.Port())
	binary.BigEndian.PutUint16(h[2:], to.Port())
	h[12], h[13] = 5<<4, flags
	summed := append(append(append(from.Addr().AsSlice(), to.Addr().AsSlice()...), 0, unix.IPPROTO_TCP, 0, 20), h...)
	sum := uint32(0)
	for i := 0; i < len(summed); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(summed[i:]))
	}
	binary.BigEndian.PutUint16(h[16:], ^uint16(sum+sum>>16))
	family, level, option := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
	at := func(a netip.Addr) unix.Sockaddr { return &unix.SockaddrInet4{Addr: a.As4()} }
	if from.Addr().Is6() {
		family, level, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
		at = func(a netip.Addr) unix.Sockaddr { return &unix.SockaddrInet6{Addr: a.As16()} }
	}
	must(t, p.Do(func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		must(t, unix.SetsockoptInt(fd, level, option, 1))
		must(t, unix.Bind(fd, at(from.Addr())))
		return unix.Sendto(fd, h, 0, at(to.Addr()))
	}))
}
