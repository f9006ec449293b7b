// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package nl

import (
	"strconv"
	"strings"
)

// LocalPorts is the range of ports from which the kernel chooses the source ports of a namespace's own connections. Add
// and Check also accept a range that another program has set, if this range begins at Last or below. Del does nothing,
// like [Sysctl.Del].
type LocalPorts struct{ First, Last uint16 }

func (p LocalPorts) String() string { return p.sysctl().String() }

func (p LocalPorts) sysctl() Sysctl {
	// IPv6 uses the same sysctl
	return Sysctl{Key: "net/ipv4/ip_local_port_range", Value: decimal(p.First) + " " + decimal(p.Last)}
}

func (p LocalPorts) Add(n *NS) error {
	s := p.sysctl()
	return s.updateValue(n, func(is string) string {
		if p.isAccepted(is) {
			return is
		}
		return s.Value
	})
}

func (p LocalPorts) Del(*NS) error { return nil }

func (p LocalPorts) Check(n *NS) error {
	s := p.sysctl()
	current, err := s.readValue(n)
	if err == nil && !p.isAccepted(current) {
		err = mismatchError(s.Key, current, s.Value)
	}
	return err
}

func (p LocalPorts) isAccepted(current string) bool {
	return current == p.sysctl().Value || p.isChosen(current)
}

// isChosen reports whether another program has set the present range, and whether this range begins at Last or below.
func (p LocalPorts) isChosen(current string) bool {
	const byDefault = "32768 60999" // the range of each new namespace (inet_init_net)
	first, _, _ := strings.Cut(current, " ")
	n, err := strconv.Atoi(first)
	return current != byDefault && err == nil && n <= int(p.Last)
}
