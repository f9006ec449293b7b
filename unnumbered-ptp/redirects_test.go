// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// TestRefusals: a pod calls a Service by IPv6 without pause, and sends to a closed port of the node. The node must not
// send ICMPv6 redirects for the calls. It must refuse the datagrams to the closed port.
func TestRefusals(t *testing.T) {
	byDefault := nl.Sysctl{Key: "net/ipv6/icmp/ratelimit", Value: "1000"} // the default of Linux 6.1
	for _, loop := range loopsOfAll {
		t.Run(loop, func(t *testing.T) {
			s := newScene(t, [2]string{loop, loop}, byDefault)
			pod, before := s.pods[0].NS, told(t, s.node)
			stop, stopped := make(chan struct{}), make(chan int)
			go func() { stopped <- talk(t, pod, stop) }()
			for range 10 { // uses up the tokens that the rate limit has saved
				if _, err := call(pod, "tcp6", dialled("tcp6", "172.20.0.10:80")); err != nil {
					t.Fatal(err)
				}
			}
			const times = 20
			refused := 0
			for range times {
				// more than the 20 ms between two refusals that the node may send; by default, these are 1000 ms
				time.Sleep(60 * time.Millisecond)
				if refuses(t, pod, dialled("udp6", nodeAddr+":9999")) {
					refused++
				}
			}
			close(stop)
			calls, misled := <-stopped, told(t, s.node)-before
			t.Logf("during %d calls of a Service %d of %d refusals and %d redirects reached the pod", calls, refused,
				times, misled)
			if calls == 0 || refused <= times/2 || misled > 0 {
				t.Error("want calls, most of the refusals, and no redirect")
			}
		})
	}
}

// refuses sends a datagram to a closed port of the node, and reports whether the node refuses it. It then sends a
// second datagram that gets an answer. The node sends a refusal before this answer.
func refuses(t *testing.T, pod *nl.NS, to string) (refused bool) {
	t.Helper()
	must(t, pod.Do(func() error {
		c, err := net.Dial("udp6", to)
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write([]byte("hello?")); err != nil {
			return err
		}
		if _, err := exchange("udp6", dialled("udp6", nodeAddr+":8080"), 1); err != nil {
			return err
		}
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		return raw.Control(func(fd uintptr) {
			_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_DONTWAIT)
			refused = errors.Is(err, unix.ECONNREFUSED)
		})
	}))
	return refused
}

// talk calls a Service until stop is closed, and returns the number of calls.
func talk(t *testing.T, pod *nl.NS, stop <-chan struct{}) (times int) {
	for ; ; times++ {
		select {
		case <-stop:
			return times
		default:
		}
		if _, err := call(pod, "udp6", dialled("udp6", "172.20.0.10:80")); err != nil {
			t.Errorf("call %d: %v", times, err)
			return times
		}
	}
}

// told returns how many ICMPv6 redirects a node has sent (/proc/net/snmp6).
func told(t *testing.T, n *nl.NS) (count int) {
	t.Helper()
	err := n.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); f[0] == "Icmp6OutRedirects" {
				count, err = strconv.Atoi(f[1])
				return err
			}
		}
		return errors.New("the kernel does not count redirects")
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// TestTooBig: the pod's link to the VPC has a smaller MTU than its veth. The node sends ICMPv6 errors about this to the
// pod, although its end of the veth has no link-local address.
func TestTooBig(t *testing.T) {
	for _, loop := range loopsOfAll {
		f := newFabric(t)
		f.add(f.node, kubeProxy("tcp6"))
		listen(t, f.other, ":8081", drain)
		p := f.pod("pod1", pod1Addr, dual)
		p.request.Config.ServiceLoop = loop
		f.add(p.NS, nl.Up{Dev: "eth0", MTU: 1500})
		must(t, f.ADD(p))
		f.add(p.NS, nl.Route{Dst: netip.MustParsePrefix("fd77::/64"), Via: netip.MustParseAddr(sixth(nodeAddr)),
			Dev: "eth1"})
		if got, err := send(p.NS, "tcp6", dialled("tcp6", "172.20.0.16:80"), 300_000); err != nil || got != "300000" {
			t.Errorf("%s: arrived %q; %v", loop, got, err)
		}
	}
}
