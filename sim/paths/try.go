// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package paths

import (
	"errors"
	"fmt"
	"net/netip"
)

// A Probe is a way to send packets from one end to the other.
type Probe struct {
	Name string
	// send returns the source address that the receiver sees; zero if the answer does not contain it.
	send func(p Path, from, to End) (seen netip.Addr, err error)
}

// Quick are a ping and a connection. Probes are all probes: small and large packets, whole and in fragments.
var (
	Quick  = []Probe{ping, {"tcp", by("tcp", little)}}
	Probes = append(Quick[:2:2],
		Probe{"udp", by("udp", little)},
		Probe{"tcp, bulk", by("tcp", bulk)},
		Probe{"udp, in fragments", by("udp", fragments)},
		Probe{"packets as large as the path takes, whole", mtu})
)

// Numbers of bytes to send. A datagram larger than a packet is sent in fragments on every path.
const (
	little    = 10
	bulk      = 200_000
	fragments = 2*jumbo + 100
)

var ping = Probe{"ping", func(_ Path, from, to End) (seen netip.Addr, err error) {
	return seen, from.Ping(to.Addr.Addr())
}}

func by(network string, size int) func(Path, End, End) (netip.Addr, error) {
	return func(_ Path, from, to End) (netip.Addr, error) {
		seen, err := from.Send(network, to.Addr, size)
		return seen.Addr(), err
	}
}

func mtu(p Path, from, to End) (netip.Addr, error) {
	got, seen, err := from.PathMTU(to.Addr)
	if err == nil && got != p.MTU {
		err = fmt.Errorf("the MTU of the path is %d, want %d", got, p.MTU)
	}
	return seen.Addr(), err
}

// A Result is the outcome of trying a path.
type Result struct {
	From, To End
	Seen     netip.Addr // the source address that the receiver saw
	Passed   []string   // the names of the probes that succeeded
	Of       int        // the number of all probes
	Err      error      // all failures
}

// Try sends packets from one end of a path to the other, and checks the source address that the receiver sees.
func (p Path) Try(s *Scene, f Family, probes []Probe) (r Result) {
	var err error
	if r.From, err = p.From(s, f); err != nil {
		return Result{Of: 1, Err: err}
	}
	if r.To, err = p.To(s, f); err != nil {
		return Result{Of: 1, Err: err}
	}
	want, err := p.Seen(s, f, r.From)
	if err != nil {
		return Result{Of: 1, Err: err}
	}
	for _, probe := range probes {
		if probe.Name == ping.Name && r.To.Namespace == nil { // the address of a Service does not answer pings
			continue
		}
		r.Of++
		seen, err := probe.send(p, r.From, r.To)
		if err == nil && seen.IsValid() {
			if r.Seen = seen; seen != want {
				err = fmt.Errorf("%s to %s is seen as %s, not as %s", r.From.Addr.Addr(), r.To.Addr, seen, want)
			}
		}
		if err != nil {
			r.Err = errors.Join(r.Err, fmt.Errorf("%s: %w", probe.Name, err))
			continue
		}
		r.Passed = append(r.Passed, probe.Name)
	}
	return r
}
