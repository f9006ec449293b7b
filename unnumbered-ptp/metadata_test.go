// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

const metadata4, metadata6 = "169.254.169.254", "fd00:ec2::254"

// A hearer is a socket that receives datagrams.
type hearer struct{ net.PacketConn }

// hear opens a socket for datagrams to port 8099 of any address of a namespace.
func hear(t *testing.T, n *nl.NS) (h hearer) {
	t.Helper()
	must(t, n.Do(func() (err error) { h.PacketConn, err = net.ListenPacket("udp", ":8099"); return err }))
	t.Cleanup(func() { h.Close() })
	return h
}

// until reads datagrams up to the first one with this text. It reports whether one of them had the text probe.
func (h hearer) until(t *testing.T, text, probe string) (heard bool) {
	t.Helper()
	h.SetReadDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 100); ; {
		k, _, err := h.ReadFrom(b)
		if err != nil {
			t.Fatalf("waiting for %q: %v", text, err)
		}
		heard = heard || string(b[:k]) == probe
		if string(b[:k]) == text {
			return heard
		}
	}
}

// tell sends a datagram. If dev is not empty, the socket is bound to the link with this name.
func tell(n *nl.NS, dev, to, text string) error {
	return n.Do(func() error {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
			if dev != "" {
				c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), dev) })
			}
			return err
		}}
		c, err := d.Dial("udp", net.JoinHostPort(to, "8099"))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	})
}

// frame sends a datagram from the pod to the metadata service through a packet socket, which bypasses routing.
func (f *fabric) frame(p *pod, text string) error {
	port := "eni1"
	if (nl.IPVlan{}).Supported(f.node) != nil {
		port = "pod1.50" // without ipvlan, the pod has a veth to the router
	}
	router, err := f.router.LinkByName(port)
	if near, e := f.node.LinkByName(p.veth()); e == nil && nl.IsRouted(near.Group) {
		router, err = near, nil // the node forwards packets of a routed pod
	}
	must(f.t, err)
	own, err := p.LinkByName("eth0")
	must(f.t, err)
	from, _ := netip.AddrFromSlice(p.request.Prev.IPs[0].Address.IP.To4())
	return p.emit(own, router.MAC, from, netip.MustParseAddr(metadata4), text)
}

// emit sends a datagram with any IPv4 source through a packet socket on a link of the pod.
func (p *pod) emit(link nl.Link, mac string, from, to netip.Addr, text string) error {
	b := append(hardware(mac), hardware(link.MAC)...)
	b = append(b, 8, 0, 0x45, 0, 0, byte(28+len(text)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	var sum uint32
	for i := 14; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	sum = ^(sum + sum>>16)
	b[24], b[25] = byte(sum>>8), byte(sum)
	b = append(b, 0x1f, 0xa3, 0x1f, 0xa3, 0, byte(8+len(text)), 0, 0) // port 8099, no checksum
	b = append(b, text...)
	return p.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, b, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
}

func hardware(mac string) []byte {
	b, _ := net.ParseMAC(mac)
	return b
}

// metadata gives the router the addresses of the metadata service, and opens a socket for them.
func (f *fabric) metadata(t *testing.T) hearer {
	t.Helper()
	f.add(f.router, nl.Addr{Prefix: netip.MustParsePrefix(metadata4 + "/32"), Dev: "lo"},
		nl.Addr{Prefix: netip.MustParsePrefix(metadata6 + "/128"), Dev: "lo", NoDAD: true})
	return hear(t, f.router)
}

// asking sets defaultRoute, blockInstanceMetadata and hostCidrs in a pod's configuration.
func (f *fabric) asking(p *pod, route string, block *bool, cidrs []string) *pod {
	f.t.Helper()
	return f.configured(p, func(c *ptp.Config) {
		atNode(c)
		c.HostCIDRs = append(c.HostCIDRs, cidrs...)
		c.DefaultRoute, c.BlockInstanceMetadata = route, block
	})
}

// TestMetadata sends datagrams to the metadata service, from unbound sockets and from sockets that are bound to a link.
// The configuration decides which datagrams arrive.
func TestMetadata(t *testing.T) {
	yes, no := new(true), new(false)
	for name, c := range map[string]struct {
		route     string
		block     *bool
		cidrs     []string // further hostCidrs
		reach     []string // address and link
		unreached []string
	}{
		"by the node": {"host", nil, nil, []string{metadata4, metadata4 + "%eth0", metadata4 + "%eth1"}, nil},
		"by the node, blocked": {"host", yes, nil, nil,
			[]string{metadata4, metadata4 + "%eth0", metadata4 + "%eth1", metadata6, metadata6 + "%eth0",
				metadata6 + "%eth1"}},
		"blocked, though hostCidrs lead to it": {"vpc", yes, []string{metadata4, metadata6}, nil,
			[]string{metadata4, metadata4 + "%eth1", metadata6, metadata6 + "%eth1"}},
		"by the ENI, allowed": {"vpc", no, nil, []string{metadata4, metadata4 + "%eth0", metadata6,
			metadata6 + "%eth0"}, nil},
		"by the node, the rest by the ENI": {"vpc", nil, []string{metadata4, metadata6},
			[]string{metadata4, metadata6}, nil},
		"by the node for one family": {"vpc", nil, []string{metadata4}, []string{metadata4},
			[]string{metadata6, metadata6 + "%eth0", metadata6 + "%eth1"}},
		"by the ENI": {"vpc", nil, nil, nil,
			[]string{metadata4, metadata4 + "%eth0", metadata4 + "%eth1", metadata6, metadata6 + "%eth0",
				metadata6 + "%eth1"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFabric(t)
			h := f.metadata(t)
			p := f.asking(f.pod("pod1", pod1Addr, dual), c.route, c.block, c.cidrs)
			must(t, f.ADD(p))
			must(t, f.CHECK(p))
			for _, where := range c.reach {
				addr, dev, _ := strings.Cut(where, "%")
				must(t, tell(p.NS, dev, addr, where))
				h.until(t, where, "")
			}
			if slices.Contains(c.reach, metadata4) {
				must(t, f.frame(p, "frame"))
				h.until(t, "frame", "")
			} else if err := f.frame(p, "frame"); !errors.Is(err, unix.ENOBUFS) {
				t.Errorf("a packet socket: %v, want no buffer space", err)
			}
			for _, where := range c.unreached {
				addr, dev, _ := strings.Cut(where, "%")
				err := tell(p.NS, dev, addr, where)
				if dev == "" && !errors.Is(err, unix.EACCES) {
					t.Errorf("%s: %v, want permission denied", where, err)
				}
				must(t, tell(p.NS, "eth0", "10.0.1.1", "end of "+where))
				if h.until(t, "end of "+where, where) {
					t.Errorf("%s: reached", where)
				}
			}
		})
	}
}

// TestCheckForbid: the pod's default route leads through its ENI, so the pod has filters against the metadata service.
// Without these filters, CHECK fails.
func TestCheckForbid(t *testing.T) {
	f := newFabric(t)
	p := f.pod("pod", "10.0.1.50")
	routed := *p.request.Prev
	routed.Routes = append(slices.Clip(routed.Routes), &types.Route{Dst: cidr("0.0.0.0/0"),
		GW: net.ParseIP("10.0.0.1")})
	p.request.Prev = &routed
	must(t, p.request.Config.Validate())
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	must(t, (nl.Wiring{{NS: p.NS, Object: nl.Forbid{Devs: []string{"eth0", "eth1"}}}}).Del())
	if err := f.CHECK(p); err == nil {
		t.Error("CHECK misses nothing")
	}
	must(t, f.DEL(p))
}
