// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/ask"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// unchecked switches off the check of IPv4 sources on links, so that only our rules drop packets, as with IPv6.
func unchecked(links ...string) (objects []nl.Object) {
	for _, l := range append(links, "all") {
		objects = append(objects, nl.Sysctl{Key: "net/ipv4/conf/" + l + "/rp_filter", Value: "0"})
	}
	return objects
}

// TestClosedPort sends a datagram to a closed port that the loop uses. The datagram must not reach another port of the
// pod, and the node must not track it.
func TestClosedPort(t *testing.T) {
	const own, closed = "33739", "50123" // the loop translates closed to own
	s := newScene(t, redirects)
	p := s.pods[0]
	s.add(p.NS, unchecked("eth0", "eth1")...)
	for _, network := range []string{"udp4", "udp6"} {
		server := bind(t, p.NS, network, ":"+own)
		client := bind(t, s.other, network, ":0")
		tracked := nltest.Tracked(t, s.node)
		for range 3 {
			client.send("closed", pod1Addr+":"+closed)
		}
		if n := nltest.Tracked(t, s.node); n != tracked {
			t.Errorf("%s: the node tracks %d connections, and %d before", network, n, tracked)
		}
		// When this answer has come, earlier datagrams on the same path have arrived, too.
		if _, err := call(p.NS, network, dialled(network, "172.20.0.10:80")); err != nil {
			t.Error(err)
		}
		client.send("open", pod1Addr+":"+own)
		if got := server.next(); got != "open" {
			t.Errorf("%s: port %s got what is for %q", network, own, got)
		}
	}
}

// TestForgedSender sends packets with a false source through the node, and through a NodePort. They must not arrive.
func TestForgedSender(t *testing.T) {
	const port = ":8080"
	s := newScene(t, redirects)
	p := s.pods[0]
	s.add(s.node, unchecked(p.result.Interfaces[1].Name)...)
	s.add(p.NS, nl.Route{Dst: netip.MustParsePrefix(internet6 + "/128"), Via: netip.MustParseAddr(sixth(nodeAddr)),
		Dev: "eth1"})
	for _, network := range []string{"udp4", "udp6"} {
		s.add(s.node, nodePorts(network, internet))
		server := bind(t, s.router, network, port)
		for _, to := range []string{internet + port, nodeAddr + ":30080"} {
			for _, sender := range []string{pod2Addr, pod3Addr, otherAddr, nodeAddr, pod1Addr} {
				bind(t, p.NS, network, dialled(network, sender+":0"), transparent(network)).send(sender, to)
			}
			if got := server.next(); got != pod1Addr {
				t.Errorf("%s: %s: the internet got a message in the name of %s", network, to, got)
			}
		}
	}
	counted, err := nl.Table{Family: "inet", Name: nl.OwnTableOf(p.request.Network)}.Counters(s.node)
	must(t, err)
	dropped := 0
	for _, c := range counted {
		if c.Chain == "senders" {
			dropped += int(c.Packets)
		}
	}
	if dropped < 12 { // three foreign sources of each family, to two ports; the kernel itself drops the node's
		t.Errorf("the chain senders has counted %d packets", dropped)
	}
}

// TestBackendOfRule: the node has a rule for packets from the address of a Service's backend, as amazon-vpc-cni-k8s
// adds it for its pods. This rule would lead answers to the VPC. Nevertheless, the node must accept the source of a pod
// that calls the Service.
func TestBackendOfRule(t *testing.T) {
	s := newScene(t, redirects)
	iproute(t, s.node, fromRules(pod3Addr))
	for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		if _, err := call(s.pods[0].NS, network, dialled(network, "172.20.0.14:80")); err != nil {
			t.Errorf("%s: %v", network, err)
		}
	}
}

// fromRules returns ip(8) commands that make the node send packets from these addresses to the VPC, in both families.
func fromRules(addrs ...string) string {
	lines := "route add default via 10.0.1.1 dev eth1 onlink table 2\n" +
		"-6 route add default via " + sixth("10.0.1.1") + " dev eth1 onlink table 2\n"
	for _, a := range addrs {
		lines += "rule add pref 1536 from " + a + " lookup 2\n-6 rule add pref 1536 from " + sixth(a) + " lookup 2\n"
	}
	return lines
}

// ruleForNode gives the node a routing table for packets from its own address. Nodes with several ENIs often have one.
func (f *fabric) ruleForNode() {
	f.t.Helper()
	for _, addr := range []string{nodeAddr, sixth(nodeAddr)} {
		a := netip.MustParseAddr(addr)
		gw := netip.MustParseAddr("10.0.9.1")
		if a.Is6() {
			gw = netip.MustParseAddr(sixth(gw.String()))
		}
		f.add(f.node, nl.Route{Dst: netip.PrefixFrom(a, 0).Masked(), Via: gw, Dev: "eth0", Table: 100},
			nl.Rule{Pref: 800, From: netip.PrefixFrom(a, a.BitLen()), Table: 100, Family: nl.FamilyOf(a)})
	}
}

// TestNodeOfManyRules: the node has a routing table for packets from its own address. Pods must reach this address.
// They must also reach another pod through a NodePort at this address. With such a table, any rp_filter except 0 drops
// IPv4 packets to the node, even without our plugins.
func TestNodeOfManyRules(t *testing.T) {
	s := newScene(t, redirects)
	s.add(s.node, unchecked(s.pods[0].result.Interfaces[1].Name)...)
	s.ruleForNode()
	for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		s.add(s.node, nodePorts(network, pod3Addr))
	}
	veth := s.pods[0].result.Interfaces[1].Name
	answers := func(dev string) {
		t.Helper()
		for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
			if seen, err := call(s.pods[0].NS, network, dialled(network, nodeAddr+":8080")); err != nil ||
				seen != seenAs(network, pod1Addr) {
				t.Errorf("%s: seen as %q; %v", network, seen, err)
			}
			if _, err := call(s.pods[0].NS, network, dialled(network, nodeAddr+":30080")); err != nil {
				t.Errorf("%s: by a NodePort: %v", network, err)
			}
		}
		for from, to := range map[string]string{nodeAddr: pod1Addr, sixth(nodeAddr): sixth(pod1Addr)} {
			got, err := ask.Leaves(s.node, netip.MustParseAddr(from), netip.MustParseAddr(to))
			if got != dev || err != nil {
				t.Errorf("the node answers by %q, not by %s; %v", got, dev, err)
			}
		}
	}
	answers("eth0")
	// With the rule that doctor proposes, this works even on links that check sources.
	iproute(t, s.node, "rule add pref 511 iif lo lookup main suppress_prefixlength 31 \n"+
		"-6 rule add pref 511 iif lo lookup main suppress_prefixlength 127")
	s.add(s.node, nl.Sysctl{Key: "net/ipv4/conf/" + veth + "/rp_filter", Value: "1"})
	answers(veth)
	serve(t, s.pods[0].NS, ":8082")
	for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
		if seen, err := call(s.node, network, dialled(network, pod1Addr+":8082")); err != nil ||
			seen != seenAs(network, nodeAddr) {
			t.Errorf("%s: the node is seen as %q; %v", network, seen, err)
		}
		if _, err := call(s.pods[0].NS, network, dialled(network, "172.20.0.10:80")); err != nil {
			t.Errorf("%s: the service: %v", network, err)
		}
	}
}

// TestRuleForNodeAlone: the node has a routing table for packets from its own address. Pods reach another pod through a
// NodePort at this address, even if the node has only routed pods, or if nodePorts is empty.
func TestRuleForNodeAlone(t *testing.T) {
	for name, configure := range map[string]func(*ptp.Config){
		"routed":             func(*ptp.Config) {},
		"routed, no ipMasq":  func(c *ptp.Config) { c.IPMasq = false },
		"no nodePorts":       func(c *ptp.Config) { c.NodePorts = new("") },
		"routed, other mark": func(c *ptp.Config) { c.NodePortMark = new(uint32(1 << 20)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			makePod := f.routed
			if !strings.HasPrefix(name, "routed") {
				makePod = f.pod
			}
			caller, backend := makePod("pod1", pod1Addr, dual), makePod("pod2", pod2Addr, dual)
			for _, p := range []*pod{caller, backend} {
				must(t, f.ADD(f.configured(p, configure)))
			}
			f.open(caller, backend)
			f.ruleForNode()
			serve(t, backend.NS, ":8080")
			for _, network := range []string{"tcp4", "udp4", "tcp6", "udp6"} {
				f.add(f.node, nodePorts(network, pod2Addr))
				if _, err := call(caller.NS, network, dialled(network, nodeAddr+":30080")); err != nil {
					t.Errorf("%s: %v", network, err)
				}
			}
		})
	}
}

// TestForgedAnswer: a pod sends packets with the source of another pod. All pods share the maps of the loop. The forged
// packets must not make the loop translate packets of the other pod.
func TestForgedAnswer(t *testing.T) {
	s := newScene(t, redirects)
	attacker, victim := s.pods[0], pod2Addr+":50000"
	s.add(s.node, unchecked(attacker.result.Interfaces[1].Name)...)
	// For IPv6, the link of a bound socket must have a route.
	s.add(attacker.NS, nl.Route{Dst: netip.MustParsePrefix(sixth(otherAddr) + "/128"),
		Via: netip.MustParseAddr(sixth(nodeAddr)), Dev: "eth1"})
	for _, network := range []string{"udp4", "udp6"} {
		client := bind(t, s.other, network, ":9053")
		forged := bind(t, attacker.NS, network, dialled(network, pod2Addr+":33616"), transparent(network), byVeth)
		forged.send("forged", otherAddr+":9053")
		client.send("?", victim)
		if client.next() == "" {
			t.Errorf("%s: %s does not answer any more", network, victim)
		}
	}
}

// TestByVeth binds a socket to the veth, as any program in a pod may do. With a loop, the packets have the pod's
// address, or do not arrive. Without a loop, they have the node's address, and the security groups of the boot ENI
// apply to them.
func TestByVeth(t *testing.T) {
	for loop, as := range map[string]string{"redirect": pod1Addr, "masquerade": "", "none": nodeAddr} {
		s := newScene(t, [2]string{loop, loop})
		server := bind(t, s.other, "udp4", ":9053")
		bind(t, s.pods[0].NS, "udp4", ":40000", byVeth).send("?", otherAddr+":9053")
		patience := time.Minute
		if as == "" {
			patience = 2 * time.Second
		}
		must(t, server.SetReadDeadline(time.Now().Add(patience)))
		seen := ""
		if _, from, err := server.ReadFrom(make([]byte, 1)); err == nil {
			seen = from.(*net.UDPAddr).IP.String()
		}
		if seen != as {
			t.Errorf("%s: seen as %q, want %q", loop, seen, as)
		}
	}
}

// A box is a UDP socket that sends and receives datagrams.
type box struct {
	*testing.T
	*net.UDPConn
	network string
}

// An option sets a socket option.
type option func(fd int) error

// transparent lets a socket send from any address.
func transparent(network string) option {
	return func(fd int) error {
		if network == "udp6" {
			return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
		}
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
	}
}

// byVeth binds a socket to the pod's veth.
func byVeth(fd int) error { return unix.BindToDevice(fd, "eth1") }

func bind(t *testing.T, n *nl.NS, network, addr string, options ...option) box {
	t.Helper()
	control := func(_, _ string, c syscall.RawConn) (failed error) {
		err := c.Control(func(fd uintptr) {
			for _, o := range options {
				failed = errors.Join(failed, o(int(fd)))
			}
		})
		return errors.Join(failed, err)
	}
	var c net.PacketConn
	must(t, n.Do(func() (err error) {
		c, err = (&net.ListenConfig{Control: control}).ListenPacket(t.Context(), network, addr)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	return box{t, c.(*net.UDPConn), network}
}

func (b box) send(text, to string) {
	b.Helper()
	addr, err := net.ResolveUDPAddr(b.network, dialled(b.network, to))
	must(b.T, err)
	_, err = b.WriteTo([]byte(text), addr)
	must(b.T, err)
}

// next waits for the next datagram, and returns its text. It returns "" if none arrives.
func (b box) next() string {
	must(b.T, b.SetReadDeadline(time.Now().Add(time.Minute)))
	text := make([]byte, 100)
	n, _, _ := b.ReadFrom(text)
	return string(text[:n])
}
