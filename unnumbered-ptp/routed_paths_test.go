// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// far is an address outside of the VPC that the other host has.
const far = "198.51.100.9"

// TestRoutedPathMTU sends large packets to hosts behind a link with a smaller MTU. The packets go through the ENI, or
// through the node, which translates the router's ICMP errors. The pod learns the MTU, and its connection works. The
// same holds for packets to a pod whose pair has a smaller MTU.
func TestRoutedPathMTU(t *testing.T) {
	const small, bytes = 1400, 300_000
	f := newFabric(t)
	pods := f.routedPods(dual)
	narrow := f.configured(f.routed("narrow", "10.0.1.56", dual), func(c *ptp.Config) { c.MTU = small })
	must(t, f.ADD(narrow))
	host := netip.MustParsePrefix(far + "/32")
	f.add(f.other, nl.Addr{Prefix: host, Dev: "lo"})
	f.add(f.router, nl.Route{Dst: host, Via: netip.MustParseAddr(otherAddr), Dev: "eni2"})
	for _, n := range []*nl.NS{f.other, narrow.NS} {
		listen(t, n, ":8090", drain)
	}
	serve(t, narrow.NS, ":8080")
	for _, own := range []string{otherAddr, sixth(otherAddr), far} { // answers come from the called address
		serve(t, f.other, net.JoinHostPort(own, "8080"))
	}
	for _, x := range []struct {
		name     string
		from     *nl.NS
		family   string
		to, seen string
	}{
		{"from the VPC to a pod", f.other, "4", narrow.addr, otherAddr},
		{"from the VPC to a pod, IPv6", f.other, "6", narrow.addr, otherAddr},
		{"to the VPC", pods[0].NS, "4", otherAddr, pod1Addr},
		{"to the VPC by another ENI", pods[2].NS, "4", otherAddr, pod3Addr},
		{"to the VPC, IPv6", pods[0].NS, "6", otherAddr, pod1Addr},
		{"to the internet", pods[0].NS, "4", far, nodeAddr},
		{"to the internet, the other ENI's pod", pods[2].NS, "4", far, nodeAddr},
		{"to a pod of the node", pods[2].NS, "4", narrow.addr, pod3Addr},
		{"to a pod of the node, IPv6", pods[2].NS, "6", narrow.addr, pod3Addr},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.from != f.other { // the smaller MTU would also stop large packets of the host itself
				f.add(f.router, nl.Up{Dev: "eni2", MTU: small})
			}
			udp, tcp := "udp"+x.family, "tcp"+x.family
			mtu, seen, err := learned(x.from, udp, dialled(udp, x.to+":8080"))
			if want := seenAs(udp, x.seen); err != nil || mtu != small || seen != want {
				t.Errorf("the MTU is %d, and the sender is seen as %q; want %d, %q; %v", mtu, seen, small, want, err)
			}
			got, err := send(x.from, tcp, dialled(tcp, x.to+":8090"), bytes)
			if err != nil || got != decimal(bytes) {
				t.Errorf("of %d bytes arrived %s; %v", bytes, got, err)
			}
		})
	}
}

// learned sends datagrams that must not be fragmented. Each is as large as the path MTU that the kernel knows, until
// the server answers one. learned returns this MTU, and the source that the server saw.
func learned(n *nl.NS, network, to string) (mtu int, seen string, err error) {
	level, option, discover, headers := unix.IPPROTO_IP, unix.IP_MTU, unix.IP_MTU_DISCOVER, 28
	if network == "udp6" {
		level, option, discover, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU, unix.IPV6_MTU_DISCOVER, 48
	}
	var c net.Conn
	if err = n.Do(func() (err error) { c, err = net.Dial(network, to); return err }); err != nil {
		return 0, "", err
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return 0, "", err
	}
	answer := make([]byte, 1<<16)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		ctl := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), level, discover, unix.IP_PMTUDISC_DO)
			if err == nil {
				mtu, err = unix.GetsockoptInt(int(fd), level, option)
			}
		})
		if err := errors.Join(ctl, err); err != nil {
			return mtu, "", err
		}
		if _, err := c.Write(make([]byte, mtu-headers)); err != nil && !errors.Is(err, unix.EMSGSIZE) {
			return mtu, "", err
		}
		c.SetReadDeadline(time.Now().Add(time.Second / 2))
		if k, err := c.Read(answer); err == nil {
			return mtu, strings.TrimRight(string(answer[:k]), "\x00"), nil
		}
	}
	return mtu, "", errors.New("no answer")
}

// TestRoutedBeside: on a node with routed pods, a pod with a slave calls Services. The backend still sees this pod's
// address.
func TestRoutedBeside(t *testing.T) {
	s := newScene(t, [2]string{"redirect", "redirect"})
	p := s.routed("routed", "10.0.1.57", dual)
	must(t, s.ADD(p))
	must(t, s.CHECK(p))
	for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		for _, p := range s.pods {
			if got, err := call(p.NS, network, dialled(network, "172.20.0.10:80")); got != seenAs(network, p.addr) {
				t.Errorf("%s from %s: the backend has seen %q; %v", network, p.addr, got, err)
			}
		}
	}
	for _, p := range s.pods {
		must(t, s.CHECK(p))
	}
}

// TestRoutedGone sends packets to a deleted routed pod, through its own ENI and through the boot ENI. The VPC delivers
// them as long as the ENI has the address. The node must not send any of them back to the VPC: their source is the
// address of another host.
func TestRoutedGone(t *testing.T) {
	for eni, addrs := range map[string][2]string{"eth1": {pod1Addr, pod2Addr}, "eth0": {"10.0.9.50", "10.0.9.51"}} {
		t.Run(eni, func(t *testing.T) {
			f := newFabric(t)
			seen := f.counts(8099)
			p, other := f.routed("pod1", addrs[0], dual), f.routed("pod2", addrs[1], dual)
			must(t, f.ADD(p))
			must(t, f.ADD(other))
			calls := func(when string, p *pod, sent uint64) {
				t.Helper()
				before := seen()
				for _, to := range []string{p.addr, sixth(p.addr)} {
					for range 3 {
						must(t, tell(f.other, "", to, "anyone?"))
					}
				}
				time.Sleep(100 * time.Millisecond) // a veth delivers packets at once
				now := seen()
				if back, got := now["back"]-before["back"], now["pods"]-before["pods"]; back != 0 || got != sent {
					t.Errorf("%s: the node has sent %d packets to pods, want %d, and %d back", when, got, sent, back)
				}
			}
			calls("both pods run", p, 6)
			must(t, f.DEL(p))
			calls("the pod has ended", p, 0)
			calls("the other pod runs", other, 6)
			must(t, f.CHECK(other))

			must(t, f.DEL(other))
			if removed, err := f.node.RemoveRouted(); !removed || err != nil {
				t.Errorf("removed %v; %v", removed, err)
			}
			calls("no pod is left", p, 0)
		})
	}
}

// TestRoutedArrivals: the kernel's check of sources (rp_filter) looks up the ENI of a packet by the packet's mark. So
// even a strict check passes packets from the VPC to routed pods of each ENI. If another program has emptied the map of
// arrivals, the check drops them.
func TestRoutedArrivals(t *testing.T) {
	f := newFabric(t)
	pods := f.routedPods(dual)
	for i, eni := range []string{"eth1", "eth2"} {
		f.add(f.node, nl.Sysctl{Key: "net/ipv4/conf/" + eni + "/rp_filter", Value: "1"})
		serve(t, pods[2*i].NS, ":8080")
	}
	sent := f.counts(8099)
	tellBoth := func() uint64 {
		for _, p := range []*pod{pods[0], pods[2]} {
			must(t, tell(f.other, "", p.addr, "anyone?"))
		}
		time.Sleep(100 * time.Millisecond) // a veth delivers packets at once
		return sent()["pods"]
	}
	for _, p := range []*pod{pods[0], pods[2]} {
		if seen, err := call(f.other, "tcp4", p.addr+":8080"); err != nil || seen != otherAddr {
			t.Errorf("the VPC calls %s: seen as %q; %v", p.addr, seen, err)
		}
	}
	if n := tellBoth(); n != 2 {
		t.Errorf("%d of 2 datagrams have reached a pod", n)
	}
	nltest.Shell(t, f.node, "nft flush map inet cni_ipvlan_vpc_k8s._enis arrivals")
	if n := tellBoth() - 2; n != 0 {
		t.Errorf("without marks, %d datagrams have reached a pod", n)
	}
}

// TestRoutedUpgrade: a node still has the rules of an earlier release, in another order. Pods and the VPC reach each
// other, and the node drops packets for a deleted pod.
func TestRoutedUpgrade(t *testing.T) {
	f := newFabric(t)
	for _, ip := range []string{"ip", "ip -6"} {
		nltest.Shell(t, f.node, strings.ReplaceAll(`IP rule add not pref 1022 iif lo lookup 2147483720 protocol 72
			IP rule add pref 1025 iif eth1 blackhole protocol 72
			IP rule add pref 1016 fwmark 0x0/0x1fe0 goto 1019 protocol 72
			IP rule add pref 1017 lookup 2147483720 protocol 72`, "IP", ip))
	}
	pods := f.routedPods(dual)
	for _, n := range []*nl.NS{f.other, pods[0].NS} {
		serve(t, n, ":8080")
	}
	for _, network := range []string{"tcp4", "tcp6"} {
		for from, to := range map[*pod]string{pods[0]: otherAddr, pods[1]: pod1Addr, pods[2]: pod1Addr} {
			seen, err := call(from.NS, network, dialled(network, to+":8080"))
			if err != nil || seen != seenAs(network, from.addr) {
				t.Errorf("%s to %s (%s): seen as %q; %v", from.addr, to, network, seen, err)
			}
		}
		if _, err := call(f.other, network, dialled(network, pod1Addr+":8080")); err != nil {
			t.Errorf("from the VPC (%s): %v", network, err)
		}
	}
	sent := f.counts(8099)
	must(t, f.DEL(pods[0]))
	for _, to := range []string{pod1Addr, sixth(pod1Addr)} {
		must(t, tell(f.other, "", to, "anyone?"))
	}
	time.Sleep(100 * time.Millisecond) // a veth delivers packets at once
	if now := sent(); now["back"] != 0 {
		t.Errorf("the node has sent %d packets back to the VPC", now["back"])
	}
}

// TestRoutedBoot: a routed pod has an address of the boot ENI. The node serves the pod. It also still sends translated
// packets to hosts of the boot ENI's subnet: calls of NodePorts whose backend is such a host, and answers to such a
// caller.
func TestRoutedBoot(t *testing.T) {
	const neighbour, podAddr = "10.0.9.1", "10.0.9.50"
	f := newFabric(t)
	f.check("10.0.9.0/26", "eni0") // for the node, and for pods on the boot ENI
	p := f.routed("pod1", podAddr, dual)
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	for _, n := range []*nl.NS{p.NS, f.router, f.other} {
		serve(t, n, ":8080")
	}
	for _, network := range []string{"tcp4", "tcp6", "udp4", "udp6"} {
		f.add(f.node, nodePorts(network, neighbour, otherAddr, podAddr))
		for _, c := range []struct {
			from     *nl.NS
			to, seen string
		}{
			{f.other, nodeAddr + ":30080", nodeAddr},
			{f.router, nodeAddr + ":30081", nodeAddr},
			{f.other, nodeAddr + ":30082", nodeAddr},
			{f.router, nodeAddr + ":30082", nodeAddr},
			{f.other, podAddr + ":8080", otherAddr},
			{f.router, podAddr + ":8080", neighbour},
			{f.node, podAddr + ":8080", nodeAddr},
			{p.NS, neighbour + ":8080", podAddr},
			{p.NS, otherAddr + ":8080", podAddr},
			{p.NS, nodeAddr + ":30080", nodeAddr},
		} {
			seen, err := call(c.from, network, dialled(network, c.to))
			if want := seenAs(network, c.seen); err != nil || seen != want {
				t.Errorf("%s to %s (%s): seen as %q, want %q; %v", c.from.Name, c.to, network, seen, want, err)
			}
		}
	}
	nltest.Shell(t, f.node, "nft delete table inet cni_ipvlan_vpc_k8s._strays")
	if err := f.CHECK(p); err == nil || !strings.Contains(err.Error(), "_strays") {
		t.Errorf("CHECK without the table: %v", err)
	}
	_, err := f.restore(f.missing(p))
	must(t, err)
	must(t, f.CHECK(p))
}

// nodePorts returns kube-proxy's rules for the NodePorts 30080, 30081 and so on, one for each backend.
func nodePorts(network string, backends ...string) nl.Table {
	t := nl.Table{Family: "inet", Name: "node_ports_" + network, Chains: []nl.Chain{
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100,
			Rules: []nl.NFRule{{nl.CTStatusDNAT(), nl.Masquerade()}}}}}
	to := netip.MustParseAddr(seenAs(network, nodeAddr))
	for i, backend := range backends {
		port := uint16(30080 + i)
		t.Chains[0].Rules = append(t.Chains[0].Rules, nl.NFRule{nl.DAddr(netip.PrefixFrom(to, to.BitLen())),
			nl.DPort(network[:3], port, port), nl.DNAT(netip.MustParseAddrPort(dialled(network, backend+":8080")))})
	}
	return t
}

// counts makes the node count datagrams to a port: those to pods, and those back to the VPC. The function that it
// returns reads both counters.
func (f *fabric) counts(port uint16) func() map[string]uint64 {
	f.t.Helper()
	udp := nl.DPort("udp", port, port)
	table := nl.Table{Family: "inet", Name: "sent", Chains: []nl.Chain{
		{Name: "back", Type: "filter", Hook: "postrouting", Rules: []nl.NFRule{{nl.OIFName("eth*"), udp, nl.Count()}}},
		{Name: "pods", Type: "filter", Hook: "postrouting", Rules: []nl.NFRule{{nl.OIFRouted(), udp, nl.Count()}}}}}
	f.add(f.node, table)
	return func() map[string]uint64 {
		f.t.Helper()
		counted, err := table.Counters(f.node)
		must(f.t, err)
		sum := map[string]uint64{}
		for _, c := range counted {
			sum[c.Chain] += c.Packets
		}
		return sum
	}
}

// TestRoutedMetadata sends to the metadata service, for each default route and each value of blockInstanceMetadata.
func TestRoutedMetadata(t *testing.T) {
	yes, no := new(true), new(false)
	for name, c := range map[string]struct {
		route            string
		block            *bool
		cidrs            []string // further hostCidrs
		reach, unreached []string
	}{
		"by the node":            {"host", nil, nil, []string{metadata4}, nil},
		"by the node, blocked":   {"host", yes, nil, nil, []string{metadata4, metadata6}},
		"by the node, allowed":   {"host", no, nil, []string{metadata4, metadata6}, nil},
		"by the ENI":             {"vpc", nil, nil, nil, []string{metadata4, metadata6}},
		"by the ENI, blocked":    {"vpc", yes, nil, nil, []string{metadata4, metadata6}},
		"by the ENI, allowed":    {"vpc", no, nil, []string{metadata4, metadata6}, nil},
		"by hostCidrs":           {"vpc", nil, []string{metadata4, metadata6}, []string{metadata4, metadata6}, nil},
		"by hostCidrs, blocked":  {"vpc", yes, []string{metadata4, metadata6}, nil, []string{metadata4, metadata6}},
		"by hostCidrs, a family": {"vpc", nil, []string{metadata4}, []string{metadata4}, []string{metadata6}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			h := f.metadata(t)
			p := f.asking(f.routed("pod1", pod1Addr, dual), c.route, c.block, c.cidrs)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			f.inquires(t, h, p, c.reach, c.unreached)
			must(t, f.DEL(p))
			same(t, "DEL", p.bare, nltest.Dump(t, p.NS))
		})
	}
}

// inquires sends datagrams to addresses of the metadata service, through an unbound socket and through a socket that is
// bound to the pod's link. The unbound socket must get an error for each address in unreached.
func (f *fabric) inquires(t *testing.T, h hearer, p *pod, reach, unreached []string) {
	t.Helper()
	for _, dev := range []string{"", "eth0"} {
		for _, addr := range reach {
			must(t, tell(p.NS, dev, addr, addr))
			h.until(t, addr, "")
		}
		for _, addr := range unreached {
			if err := tell(p.NS, dev, addr, addr); dev == "" && !errors.Is(err, unix.EACCES) {
				t.Errorf("%s: %v, want permission denied", addr, err)
			}
			must(t, tell(p.NS, "eth0", "10.0.1.1", "end of "+addr))
			if h.until(t, "end of "+addr, addr) {
				t.Errorf("%s by %q: reached", addr, dev)
			}
		}
	}
	switch err := f.frame(p, "frame"); {
	case reach != nil && reach[0] == metadata4:
		must(t, err)
		h.until(t, "frame", "")
	case !errors.Is(err, unix.ENOBUFS):
		t.Errorf("a packet socket: %v, want no buffer space", err)
	}
}
