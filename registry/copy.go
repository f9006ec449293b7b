// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"time"
)

// Known returns a copy of the state without the JSON members that this release does not know. The state and the copy
// share maps and lists.
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
	n.Log, n.LogLines, n.bootTime = s.Log, s.LogLines, s.bootTime
	return n
}

// Text returns the text of a registry's file whose content is this state.
func (s *State) Text() ([]byte, error) {
	parts, err := s.encodeFile(time.Time{})
	return bytes.Join(parts, nil), err
}

// Parse parses the text of a registry's file. The file may be from another node. Parse does not convert the times in
// the text to this node's clock.
func Parse(text []byte) (*State, error) { return parseState(text, time.Time{}) }
