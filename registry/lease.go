// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/codec"
)

// A Lease gives an address to an attachment.
//
//codec:describe
type Lease struct {
	Key
	PodNamespace string `json:"podNamespace,omitempty"`
	PodName      string `json:"podName,omitempty"`
	NetNS        string `json:"netns,omitempty"` // path of the pod's namespace
	ENI          string `json:"eni"`
	// which interface of the attachment has the address: 0 is the interface with the attachment's name; higher numbers
	// are further interfaces
	NIC       int  `json:"nic,omitempty"`
	Asked     bool `json:"asked,omitempty"`     // the pod has asked for exactly this address
	Exclusive bool `json:"exclusive,omitempty"` // the pod has the whole ENI, and its link
	// the kernel has the address in the pod; before that, the address is only reserved
	Bound        bool      `json:"bound,omitempty"`
	Since        time.Time `json:"since"`
	MissingSince time.Time `json:"missingSince,omitzero"` // when a collection first saw that NetNS is gone
}

// A Pod names a Kubernetes pod. If a StatefulSet creates a pod again, the new pod has the same name.
//
//codec:describe
type Pod struct {
	Network   string `json:"network"`
	Namespace string `json:"podNamespace"`
	Name      string `json:"podName"`
}

// Pod is the pod of the lease.
func (l Lease) Pod() Pod { return Pod{l.Network, l.PodNamespace, l.PodName} }

// PodOf is namespace/name of the lease's pod, or empty outside Kubernetes.
func (l Lease) PodOf() string {
	if l.PodName == "" {
		return ""
	}
	return l.PodNamespace + "/" + l.PodName
}

// begin returns the beginning of the text of a lease of the attachment. By this text, a process finds the attachment's
// leases, and need not parse the leases of other attachments.
func (k Key) begin() string {
	// members writes only texts, which cannot fail
	b, _ := codec.Write([]byte{}, func(c *codec.Codec) { c.Object(func() { k.members(c) }) })
	return strings.TrimSuffix(string(b), "}")
}

// Held lists the addresses of an attachment, in order.
func (s *State) Held(k Key) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Beginning(k.begin()) {
		if l.Key == k {
			held = append(held, a)
		}
	}
	return held
}

// HeldBy lists the addresses of one interface of an attachment, in order.
func (s *State) HeldBy(k Key, nic int) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Beginning(k.begin()) {
		if l.Key == k && l.NIC == nic {
			held = append(held, a)
		}
	}
	return held
}

// Reserve gives the address a to the lease's attachment. It returns ErrLeased if another attachment has the address.
func (s *State) Reserve(a netip.Addr, l Lease) error {
	if old, ok := s.Leases.At(a); ok && old.Key != l.Key {
		return fmt.Errorf("reserve %s for %s: %w by %s", a, l.Key, ErrLeased, old.Key)
	}
	if !s.Leases.Has(a) {
		s.note(Begin, a, l, l.Since)
	}
	s.Free.Delete(a)
	delete(s.Owners, a)
	s.Leases.Set(a, l)
	return nil
}

// Found gives a lease without a key to an address that is in use by an unknown pod. The new lease replaces any other
// lease of the address.
func (s *State) Found(a netip.Addr, l Lease) {
	if old, ok := s.Leases.At(a); ok {
		s.note(End, a, old, l.Since)
	}
	s.note(Begin, a, l, l.Since)
	s.Free.Delete(a)
	s.Leases.Set(a, l)
}

// EndWhere ends the leases for which match returns true, and returns their addresses.
func (s *State) EndWhere(now time.Time, match func(netip.Addr, Lease) bool) []netip.Addr {
	var ended []netip.Addr
	for a, l := range s.Leases.All() {
		if match(a, l) {
			s.End(a, now)
			ended = append(ended, a)
		}
	}
	return ended
}

// EndOf ends the leases of an attachment. It does not end a lease that began after the time command: see
// [State.BegunAfter]. The hints are addresses that the attachment may have. If a lease of a hint has no key, EndOf also
// ends this lease.
func (s *State) EndOf(k Key, now, command time.Time, hints ...netip.Addr) {
	for _, a := range s.Held(k) {
		if l, _ := s.Leases.At(a); !s.BegunAfter(l, command) {
			s.End(a, now)
		}
	}
	for _, a := range hints {
		if l, ok := s.Leases.At(a); ok && l.Key == (Key{}) {
			s.End(a, now)
		}
	}
}

// EndWaiters removes the waiters for the interfaces of an attachment. The entries of GaveUp stay, because a runtime
// deletes the attachment of a failed ADD before it repeats the ADD under another ID.
func (s *State) EndWaiters(k Key) {
	name := k.String()
	maps.DeleteFunc(s.Waiters, func(w string, _ Waiter) bool { return w == name || strings.HasPrefix(w, name+"/") })
}

// End ends the lease of an address. If the address is still on an ENI, it becomes free, and since is the time from
// which on it cools. If since is zero, it need not cool.
func (s *State) End(a netip.Addr, since time.Time) {
	l, ok := s.Leases.At(a)
	if ok {
		s.note(End, a, l, since)
	}
	s.Leases.Delete(a)
	if id, _ := s.ENIOf(a); id != "" {
		s.Free.Set(a, since)
		if l.Asked && l.PodName != "" {
			s.Owners[a] = l.Pod()
		}
	}
}

// Exclusive returns the IDs of the ENIs that pods have for themselves. The links of these ENIs are in the pods, not on
// the node.
func (s *State) Exclusive() map[string]bool {
	all := map[string]bool{}
	for _, l := range s.Leases.Containing(`"exclusive":true`) {
		if l.Exclusive {
			all[l.ENI] = true
		}
	}
	return all
}
