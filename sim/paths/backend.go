// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// The ways to call a Service. Each way checks that a backend of the Service got the call, and not another host.
var (
	calls = []Probe{
		{"tcp", answered(by("tcp", little))},
		{"udp", answered(by("udp", little))},
		{"tcp, bulk", answered(by("tcp", bulk))},
	}
	connections = []Probe{calls[0], calls[2]}
	spread      = []Probe{{"tcp, all backends", several("tcp", 64, everyBackend)},
		{"udp, all backends", several("udp", 64, everyBackend)}}
	sticky = []Probe{{"tcp, one backend", several("tcp", 16, oneBackend)},
		{"udp, one backend", several("udp", 16, oneBackend)}}
	refusals = []Probe{{"tcp, refused", refused("tcp")}, {"udp, refused", refused("udp")}}
)

// answered returns a function that sends the packets of a probe, and checks that a backend of the Service gets them.
func answered(send func(Path, End, End) (netip.Addr, error)) func(Path, End, End) (netip.Addr, error) {
	return func(p Path, from, to End) (seen netip.Addr, err error) {
		reached, err := to.reached(func() error { seen, err = send(p, from, to); return err })
		if err == nil && reached == 0 {
			err = errors.New("none of the backends was called")
		}
		return seen, err
	}
}

// several returns a function that calls a Service several times, and gives judge the number of backends that got a
// call. The backends must see the same source address each time.
func several(network string, times int, judge func(reached, of int) error) func(Path, End, End) (netip.Addr, error) {
	return func(_ Path, from, to End) (seen netip.Addr, err error) {
		reached, err := to.reached(func() error {
			for range times {
				as, err := from.Call(network, to.Addr)
				if err != nil {
					return err
				}
				if seen.IsValid() && as.Addr() != seen {
					return fmt.Errorf("seen as %s, and before as %s", as.Addr(), seen)
				}
				seen = as.Addr()
			}
			return nil
		})
		if err != nil {
			return seen, err
		}
		return seen, judge(reached, len(to.backends))
	}
}

func everyBackend(reached, of int) error {
	if reached != of {
		return fmt.Errorf("%d of %d backends were called", reached, of)
	}
	return nil
}

func oneBackend(reached, of int) error { return everyBackend(reached, min(1, of)) }

// refused returns a function that checks that a call fails at once instead of waiting. The caller's own node may refuse
// a datagram before the datagram leaves the node.
func refused(network string) func(Path, End, End) (netip.Addr, error) {
	return func(_ Path, from, to End) (seen netip.Addr, err error) {
		_, err = from.Call(network, to.Addr)
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EPERM) {
			return seen, fmt.Errorf("got %v, want %w", err, syscall.ECONNREFUSED)
		}
		return seen, nil
	}
}

// answering returns the namespaces that may answer.
func (e End) answering() []*vpcsim.Namespace {
	if e.Namespace != nil {
		return []*vpcsim.Namespace{e.Namespace}
	}
	return e.backends
}

// reached calls the function, and returns how many of the backends got a call meanwhile.
func (e End) reached(meanwhile func() error) (count int, err error) {
	before := make([]int, len(e.backends))
	for i, b := range e.backends {
		if before[i], err = called(b); err != nil {
			return 0, err
		}
	}
	if err := meanwhile(); err != nil {
		return 0, err
	}
	for i, b := range e.backends {
		now, err := called(b)
		if err != nil {
			return 0, err
		}
		if now > before[i] {
			count++
		}
	}
	return count, nil
}

// called returns how many connections and datagrams programs in a namespace have received: RFC 4022, tcpPassiveOpens;
// RFC 4113, udpInDatagrams.
func called(n *vpcsim.Namespace) (count int, err error) {
	err = n.Do(func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		v6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		tcp, err := counter(string(v4), "Tcp:", "PassiveOpens") // including IPv6
		if err != nil {
			return err
		}
		udp, err := counter(string(v4), "Udp:", "InDatagrams")
		if err != nil {
			return err
		}
		udp6, err := counter(string(v6), "Udp6InDatagrams", "")
		count = tcp + udp + udp6
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", n.Name, err)
	}
	return count, nil
}

// counter reads a counter from a file of proc_net(5). The file snmp has a line of names before each line of values. The
// file snmp6 has one line for each counter.
func counter(file, line, name string) (int, error) {
	var names []string
	for l := range strings.Lines(file) {
		f := strings.Fields(l)
		if f[0] != line {
			continue
		}
		if name == "" {
			return strconv.Atoi(f[1])
		}
		for i, n := range names {
			if n == name {
				return strconv.Atoi(f[i])
			}
		}
		names = f
	}
	return 0, fmt.Errorf("the kernel does not count %s %s", line, name)
}
