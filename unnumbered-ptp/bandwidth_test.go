// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	ptp "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/unnumbered-ptp"
)

// A sink is a socket that gets datagrams on port 8081.
type sink struct {
	net.PacketConn
	raw syscall.RawConn
}

func newSink(t *testing.T, n *nl.NS) (s sink) {
	t.Helper()
	must(t, n.Do(func() (err error) { s.PacketConn, err = net.ListenPacket("udp", ":8081"); return err }))
	t.Cleanup(func() { s.Close() })
	var err error
	s.raw, err = s.PacketConn.(*net.UDPConn).SyscallConn()
	must(t, err)
	must(t, s.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	}))
	must(t, err)
	return s
}

// there reads the datagrams that have arrived, and returns their number.
func (s sink) there(t *testing.T) (n int) {
	t.Helper()
	must(t, s.raw.Control(func(fd uintptr) {
		for b := make([]byte, datagram); ; n++ {
			if _, _, err := unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT); err != nil {
				return
			}
		}
	}))
	return n
}

// count reads datagrams until it has at least enough of them. While it has fewer than must, it waits up to a minute for
// the next datagram. After that, it waits half a second for each further datagram.
func count(t *testing.T, must, enough int, sinks []sink) (n int) {
	t.Helper()
	for last := time.Now(); n < enough; time.Sleep(time.Millisecond) {
		before := n
		for _, s := range sinks {
			n += s.there(t)
		}
		switch quiet := time.Since(last); {
		case n > before:
			last = time.Now()
		case quiet > time.Minute, n >= must && quiet > time.Second/2:
			return n
		}
	}
	return n
}

const datagram, datagrams = 1000, 100

// stream sends n datagrams to port 8081 by IPv4 and n by IPv6, and returns their number.
func stream(t testing.TB, from *nl.NS, to string, n int) int {
	t.Helper()
	for _, network := range []string{"udp4", "udp6"} {
		must(t, from.Do(func() error {
			c, err := net.Dial(network, dialled(network, to))
			if err != nil {
				return err
			}
			defer c.Close()
			for range n {
				c.Write(make([]byte, datagram))
			}
			return nil
		}))
	}
	return 2 * n
}

// A limited is a pod with a limited bandwidth, on a fabric with Services.
type limited struct {
	*fabric
	pod   *pod
	sinks [3]sink // of the pod, the node, and the other host
	start time.Time
}

func newLimited(t *testing.T, limit string) limited {
	t.Helper()
	f := newFabric(t)
	f.add(f.node, kubeProxy("tcp4"), kubeProxy("tcp6"))
	p := f.configured(f.pod("pod1", pod1Addr, dual), func(c *ptp.Config) {
		atNode(c)
		must(t, json.Unmarshal([]byte(limit), &c.RuntimeConfig.Bandwidth))
	})
	l := limited{fabric: f, pod: p, start: time.Now()}
	must(t, f.ADD(p))
	must(t, f.CHECK(p))
	for i, n := range []*nl.NS{p.NS, f.node, f.other} {
		l.sinks[i] = newSink(t, n)
	}
	for _, way := range []way{limited.out, limited.in, limited.service} {
		l.free(t, way, 1) // these packets make the kernels learn the MAC addresses of next hops
	}
	return l
}

// A way sends datagrams in one direction. It returns their number, and the sinks that they should reach.
type way func(l limited, n int) (sent int, to []sink)

// out sends from the pod through both of its links, and in sends to the pod.
func (l limited) out(n int) (sent int, to []sink) {
	return stream(l.t, l.pod.NS, otherAddr+":8081", n) + stream(l.t, l.pod.NS, nodeAddr+":8081", n), l.sinks[1:]
}

func (l limited) in(n int) (sent int, to []sink) {
	return stream(l.t, l.other, pod1Addr+":8081", n) + stream(l.t, l.node, pod1Addr+":8081", n), l.sinks[:1]
}

// service sends from the pod to another host through a Service.
func (l limited) service(n int) (sent int, to []sink) {
	return stream(l.t, l.pod.NS, "172.20.0.16:80", 2*n), l.sinks[2:]
}

// free fails the test unless all datagrams arrive.
func (l limited) free(t *testing.T, w way, n int) {
	t.Helper()
	sent, to := w(l, n)
	if got := count(t, sent, sent, to); got != sent {
		t.Fatalf("free: %d of %d arrived", got, sent)
	}
}

// TestBandwidth limits one direction of a pod. The pod's two links share one limit, for IPv4 and IPv6 together: in
// total, one burst passes, or a little more. The limit counts packets of the service loop only once. The other
// direction is not limited.
func TestBandwidth(t *testing.T) {
	nltest.Need(t, "police")
	const rate, burst = 1000, 128 << 10
	const egress, ingress = `{"EgressRate": 8000, "EgressBurst": 4294967295}`, `{"ingressRate": 8000, ` +
		`"ingressBurst": 8}`
	for name, c := range map[string]struct {
		limit         string
		free, bounded way
	}{
		"none":                  {`{}`, limited.out, nil},
		"none, in":              {`{}`, limited.in, nil},
		"egress":                {egress, limited.in, limited.out},
		"egress to a service":   {egress, nil, limited.service},
		"ingress":               {ingress, limited.out, limited.in},
		"ingress and a service": {ingress, limited.service, limited.in},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimited(t, c.limit)
			if c.free != nil {
				l.free(t, c.free, datagrams)
			}
			if c.bounded != nil {
				const least = burst * 3 / 4 / datagram
				sent, to := c.bounded(l, datagrams)
				got := count(t, least, sent, to)
				most := (burst + rate*(1+int(time.Since(l.start).Seconds()))) / datagram
				if got < least || got > most {
					t.Errorf("bounded: %d arrived, want %d to %d", got, least, most)
				}
			}
		})
	}
}

// TestBandwidthLifecycle: after the removal of one limit, CHECK fails. DEL deletes the limits.
func TestBandwidthLifecycle(t *testing.T) {
	nltest.Need(t, "police")
	l := newLimited(t, `{"egressRate": 8000000, "ingressRate": 8000000}`)
	must(t, l.ADD(l.pod))
	gone := nl.Limit{Devs: []string{"eth0", "eth1"}, Egress: true}
	must(t, gone.Del(l.pod.NS))
	if err := l.CHECK(l.pod); err == nil || !strings.Contains(err.Error(), "police") {
		t.Errorf("CHECK without a limit: %v", err)
	}
	must(t, l.ADD(l.pod))
	must(t, l.CHECK(l.pod))
	must(t, l.DEL(l.pod))
	for _, o := range []nl.Limit{gone, {Devs: gone.Devs}} {
		if err := o.Del(l.pod.NS); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("DEL left a limit: %v", err)
		}
	}
}

// TestBandwidthBurst: for a pod without a configured burst, a runtime sends a burst so large that nothing would be
// limited. ADD then uses the default burst. CHECK accepts a pod of an earlier release that has the runtime's burst.
// Another ADD replaces that burst.
func TestBandwidthBurst(t *testing.T) {
	nltest.Need(t, "police")
	f := newFabric(t)
	p := f.pod("pod1", pod1Addr)
	for runtime, bits := range map[string]uint64{"none": 0, "containerd": math.MaxUint32,
		"CRI-O": math.MaxUint32*8 - 1, "older CRI-O": math.MaxUint32 * 8} {
		t.Run(runtime, func(t *testing.T) {
			b := &p.request.Config.RuntimeConfig.Bandwidth
			b.EgressRate, b.EgressBurst, b.IngressRate, b.IngressBurst = 16_000_000, bits, 8_000_000, bits
			want := []nl.Limit{{Egress: true, Rate: 2_000_000, Burst: 200_000}, {Rate: 1_000_000, Burst: 128 << 10}}
			right := func(when string) {
				t.Helper()
				must(t, f.CHECK(p))
				for _, l := range want {
					l.Devs = []string{"eth0", "eth1"}
					if err := l.Check(p.NS); err != nil {
						t.Errorf("%s: %s: %v", when, l, err)
					}
				}
			}
			must(t, f.ADD(p))
			right("ADD")
			if bits <= math.MaxUint32 {
				return
			}
			for _, l := range want {
				l.Devs, l.Burst = []string{"eth0", "eth1"}, bits/8
				must(t, l.Add(p.NS))
			}
			must(t, f.CHECK(p))
			if l := f.missing(p); !l.None() {
				t.Errorf("with the former limit, it misses %v, %v, %v", l.Node, l.Pod, l.Changed)
			}
			must(t, f.ADD(p))
			right("a further ADD")
		})
	}
}
