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

// The probes of Services. The probes in "refusals" check that a call is refused. The other probes check that a backend
// gets the call.
var (
	calls = []Probe{
		{"tcp", byBackend(sendBy("tcp", smallSize))},
		{"udp", byBackend(sendBy("udp", smallSize))},
		{"tcp, bulk", byBackend(sendBy("tcp", bulkSize))},
	}
	tcpCalls    = []Probe{calls[0], calls[2]}
	eachBackend = []Probe{{"tcp, all backends", callRepeatedly("tcp", 64, wantEveryBackend)},
		{"udp, all backends", callRepeatedly("udp", 64, wantEveryBackend)}}
	oneBackend = []Probe{{"tcp, one backend", callRepeatedly("tcp", 16, wantOneBackend)},
		{"udp, one backend", callRepeatedly("udp", 16, wantOneBackend)}}
	refusals = []Probe{{"tcp, refused", expectRefusal("tcp")}, {"udp, refused", expectRefusal("udp")}}
)

func byBackend(send func(Path, End, End) (netip.Addr, error)) func(Path, End, End) (netip.Addr, error) {
	return func(p Path, from, to End) (seen netip.Addr, err error) {
		reached, err := to.countCalled(func() error { seen, err = send(p, from, to); return err })
		if err == nil && reached == 0 {
			err = errors.New("none of the backends was called")
		}
		return seen, err
	}
}

// callRepeatedly returns a function that calls a Service several times, and checks that all calls arrive with the same
// source address. checkCount checks how many of the backends have received a call.
func callRepeatedly(network string, times int, checkCount func(reached, of int) error) func(Path, End, End) (
	netip.Addr, error,
) {
	return func(_ Path, from, to End) (seen netip.Addr, err error) {
		reached, err := to.countCalled(func() error {
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
		return seen, checkCount(reached, len(to.backends))
	}
}

func wantEveryBackend(reached, of int) error {
	if reached != of {
		return fmt.Errorf("%d of %d backends were called", reached, of)
	}
	return nil
}

func wantOneBackend(reached, of int) error { return wantEveryBackend(reached, min(1, of)) }

// expectRefusal returns a function that calls an End, and checks that the call is refused. A timeout is no refusal. The
// error EPERM is a refusal: the caller's own node has rejected a datagram.
func expectRefusal(network string) func(Path, End, End) (netip.Addr, error) {
	return func(_ Path, from, to End) (seen netip.Addr, err error) {
		_, err = from.Call(network, to.Addr)
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EPERM) {
			return seen, fmt.Errorf("got %v, want %w", err, syscall.ECONNREFUSED)
		}
		return seen, nil
	}
}

// answerers returns the namespaces that can answer a call to the End.
func (e End) answerers() []*vpcsim.Namespace {
	if e.Namespace != nil {
		return []*vpcsim.Namespace{e.Namespace}
	}
	return e.backends
}

// countCalled returns how many backends have received a connection or a datagram from the function "send".
func (e End) countCalled(send func() error) (count int, err error) {
	before := make([]int, len(e.backends))
	for i, b := range e.backends {
		if before[i], err = callsReceived(b); err != nil {
			return 0, err
		}
	}
	if err := send(); err != nil {
		return 0, err
	}
	for i, b := range e.backends {
		now, err := callsReceived(b)
		if err != nil {
			return 0, err
		}
		if now > before[i] {
			count++
		}
	}
	return count, nil
}

// callsReceived returns how many connections and datagrams the programs in a namespace have received (RFC 4022,
// tcpPassiveOpens; RFC 4113, udpInDatagrams).
func callsReceived(n *vpcsim.Namespace) (count int, err error) {
	err = n.Do(func() error {
		v4, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		v6, err := os.ReadFile("/proc/thread-self/net/snmp6")
		if err != nil {
			return err
		}
		tcp, err := readCounter(string(v4), "Tcp:", "PassiveOpens") // of IPv4 and IPv6
		if err != nil {
			return err
		}
		udp, err := readCounter(string(v4), "Udp:", "InDatagrams")
		if err != nil {
			return err
		}
		udp6, err := readCounter(string(v6), "Udp6InDatagrams", "")
		count = tcp + udp + udp6
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", n.Name, err)
	}
	return count, nil
}

// readCounter returns a counter from the text of the file snmp or snmp6 (proc_net(5)). In snmp, two lines of text begin
// with the same word. One line has the names of counters, and the other line has their values. The argument "line" is
// this first word, and the argument "name" is the counter's name. In snmp6, each line of text has one counter. The
// argument "line" is the counter's name, and the argument "name" is empty.
func readCounter(file, line, name string) (int, error) {
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
