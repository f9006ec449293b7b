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
	// send returns the source address that the receiver sees, or the zero Addr if the receiver does not report it.
	send func(p Path, from, to End) (seen netip.Addr, err error)
}

// Quick has only a ping and a TCP connection. Probes has all probes of a path, with small and large packets, and with
// fragments.
var (
	Quick  = []Probe{pingProbe, {"tcp", sendBy("tcp", smallSize)}}
	Probes = append(Quick[:2:2],
		Probe{"udp", sendBy("udp", smallSize)},
		Probe{"tcp, bulk", sendBy("tcp", bulkSize)},
		Probe{"udp, in fragments", sendBy("udp", fragmentedSize)},
		Probe{"packets as large as the path takes, whole", checkMTU})
)

// Numbers of bytes to send. fragmentedSize is more than the MTU of each path, so the kernel sends fragments.
const (
	smallSize      = 10
	bulkSize       = 200_000
	fragmentedSize = 2*jumbo + 100
)

var pingProbe = Probe{"ping", func(_ Path, from, to End) (seen netip.Addr, err error) {
	return seen, from.Ping(to.Addr.Addr())
}}

func sendBy(network string, size int) func(Path, End, End) (netip.Addr, error) {
	return func(_ Path, from, to End) (netip.Addr, error) {
		seen, err := from.Send(network, to.Addr, size)
		return seen.Addr(), err
	}
}

func checkMTU(p Path, from, to End) (netip.Addr, error) {
	got, seen, err := from.PathMTU(to.Addr)
	if err == nil && got != p.MTU {
		err = fmt.Errorf("the MTU of the path is %d, want %d", got, p.MTU)
	}
	return seen.Addr(), err
}

// A Result is the outcome of [Path.Try].
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
		if probe.Name == pingProbe.Name && r.To.Namespace == nil { // a Service does not answer pings
			continue
		}
		r.Of++
		seen, err := probe.send(p, r.From, r.To)
		if err == nil && seen.IsValid() {
			if r.Seen = seen; seen != want {
				err = fmt.Errorf("%s sent to %s, and the receiver saw the source %s, not %s", r.From.Addr.Addr(),
					r.To.Addr, seen, want)
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
