// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package egress

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The roles of a pod.
const (
	Client = "client"
	Router = "router"
)

// A State has the facts that the kernel shows about a pod that is a client or a router.
type State struct {
	Role     string
	Addrs    []netip.Addr // local addresses of the tunnels, which are addresses of the pod
	Received uint64       // packets that the tunnels have received
	Sent     uint64       // packets that the pod has sent into the tunnels
	Refused  uint64       // packets that the pod's table has dropped

	Forwarded uint64 // in a router: packets from clients that it has forwarded
	Answered  uint64 // in a router: answers that it has sent to clients
}

// Read reads the state of a pod from its namespace. The error is fs.ErrNotExist if the pod
// is neither client nor router.
func Read(pod *nl.NS) (State, error) {
	var s State
	for _, name := range []string{Link4, Link6} {
		l, err := pod.LinkByName(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return s, err
		}
		local, _, is := l.Tunnel()
		if !is {
			continue // a program of the pod has made a link of this name
		}
		received, sent, err := pod.Traffic(name)
		if err != nil {
			return s, err
		}
		s.Addrs, s.Received, s.Sent = append(s.Addrs, local), s.Received+received, s.Sent+sent
	}
	if len(s.Addrs) == 0 {
		return s, noRoleError(pod)
	}
	return s, s.readTable(pod)
}

func noRoleError(pod *nl.NS) error {
	return fmt.Errorf("%s is neither client nor router of an egress: %w", pod.Name, fs.ErrNotExist)
}

// readTable reads the role and the counters of the table. Only a router has the rule for answers.
func (s *State) readTable(pod *nl.NS) (err error) {
	s.Role = Client
	rules, err := pod.Rules()
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Pref == prefBack && r.Table == tableBack {
			s.Role = Router
		}
	}
	counters, err := nl.Table{Family: "inet", Name: Table}.Counters(pod)
	for _, c := range counters {
		switch {
		case c.Drops:
			s.Refused += c.Packets
		case c.IIF:
			s.Forwarded += c.Packets
		default:
			s.Answered += c.Packets
		}
	}
	return err
}
