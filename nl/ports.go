// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"strconv"
	"strings"
)

// LocalPorts are the ports from which the kernel chooses the source ports of a namespace's own connections. If another
// program has chosen a range that begins at Last or below, Add does not change this range. Del does nothing, like the
// Del of a Sysctl.
type LocalPorts struct{ First, Last uint16 }

func (p LocalPorts) String() string { return p.sysctl().String() }

func (p LocalPorts) sysctl() Sysctl {
	return Sysctl{Key: "net/ipv4/ip_local_port_range", Value: decimal(p.First) + " " + decimal(p.Last)} // also for IPv6
}

// Add sets the range.
func (p LocalPorts) Add(n *NS) error {
	s := p.sysctl()
	return s.change(n, func(is string) string {
		if p.accepts(is) {
			return is
		}
		return s.Value
	})
}

// Del does nothing.
func (p LocalPorts) Del(*NS) error { return nil }

// Check accepts the ranges that Add does not change.
func (p LocalPorts) Check(n *NS) error {
	s := p.sysctl()
	is, err := s.read(n)
	if err == nil && !p.accepts(is) {
		err = differs(s.Key, is, s.Value)
	}
	return err
}

func (p LocalPorts) accepts(is string) bool { return is == p.sysctl().Value || p.chosen(is) }

// chosen reports whether another program has chosen a range that begins at Last or below.
func (p LocalPorts) chosen(is string) bool {
	const byDefault = "32768 60999" // of each new namespace (inet_init_net)
	first, _, _ := strings.Cut(is, " ")
	n, err := strconv.Atoi(first)
	return is != byDefault && err == nil && n <= int(p.Last)
}
