// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"time"
)

// Known returns a copy of the state that has only the members that this release knows. The copy keeps no text of the
// file. So it has no members of another program or of a later release. The state and the copy share maps and lists.
func (s *State) Known() *State {
	n := newState()
	for a, since := range s.Free.All() {
		n.Free.Set(a, since)
	}
	for a, l := range s.Leases.All() {
		n.Leases.Set(a, l)
	}
	n.ENIs, n.VPCs, n.Intents, n.Waiters, n.GaveUp = s.ENIs, s.VPCs, s.Intents, s.Waiters, s.GaveUp
	n.Failures, n.NotBefore, n.Refusals, n.Gone, n.Owners = s.Failures, s.NotBefore, s.Refusals, s.Gone, s.Owners
	n.Warm, n.OnRequest, n.Rebuilt, n.Instance = s.Warm, s.OnRequest, s.Rebuilt, s.Instance
	n.Log, n.LogLines, n.booted = s.Log, s.LogLines, s.booted
	return n
}

// Text returns the state as the text of a registry's file.
func (s *State) Text() ([]byte, error) {
	parts, err := s.encode(time.Time{})
	return bytes.Join(parts, nil), err
}

// Parse reads the text of a registry of any node. Parse does not change the times, which are by the clock of that node.
func Parse(text []byte) (*State, error) { return parse(text, time.Time{}) }
