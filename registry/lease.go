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
	NetNS        string `json:"netns,omitempty"` // path of the pod's network namespace
	ENI          string `json:"eni"`
	// the number of the attachment's interface that has the address; 0 is the interface with the attachment's name
	NIC       int  `json:"nic,omitempty"`
	Asked     bool `json:"asked,omitempty"`     // the pod has asked for exactly this address
	Exclusive bool `json:"exclusive,omitempty"` // the pod has the whole ENI, and its link
	// true: the kernel has the address in the pod; false: the address is only reserved
	Bound        bool      `json:"bound,omitempty"`
	Since        time.Time `json:"since"`
	MissingSince time.Time `json:"missingSince,omitzero"` // when a collection first saw that the pod is gone
}

// A Pod identifies a Kubernetes pod by its network, its namespace and its name. If a StatefulSet creates a pod again,
// the new pod has the same name.
//
//codec:describe
type Pod struct {
	Network   string `json:"network"`
	Namespace string `json:"podNamespace"`
	Name      string `json:"podName"`
}

// Pod returns the pod of the lease.
func (l Lease) Pod() Pod { return Pod{l.Network, l.PodNamespace, l.PodName} }

// PodOf returns the namespace and the name of the lease's pod, as "namespace/name". If the runtime is not Kubernetes,
// PodOf returns "".
func (l Lease) PodOf() string {
	if l.PodName == "" {
		return ""
	}
	return l.PodNamespace + "/" + l.PodName
}

// leaseTextStart returns the text with which the JSON of each lease of the attachment begins. With this text, a process
// finds these leases without parsing others.
func (k Key) leaseTextStart() string {
	// codec.Write cannot fail here, because k.members writes only strings
	b, _ := codec.Write([]byte{}, func(c *codec.Codec) { c.Object(func() { k.members(c) }) })
	return strings.TrimSuffix(string(b), "}")
}

// Held returns the addresses that are leased to the attachment k. The addresses are sorted.
func (s *State) Held(k Key) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Beginning(k.leaseTextStart()) {
		if l.Key == k {
			held = append(held, a)
		}
	}
	return held
}

// HeldBy returns the addresses that are leased to one interface of the attachment k. The addresses are sorted.
func (s *State) HeldBy(k Key, nic int) []netip.Addr {
	var held []netip.Addr
	for a, l := range s.Leases.Beginning(k.leaseTextStart()) {
		if l.Key == k && l.NIC == nic {
			held = append(held, a)
		}
	}
	return held
}

// Reserve records the lease l of an address. If the address is already leased to another attachment, Reserve returns
// ErrLeased.
func (s *State) Reserve(a netip.Addr, l Lease) error {
	if old, ok := s.Leases.At(a); ok && old.Key != l.Key {
		return fmt.Errorf("reserve %s for %s: %w by %s", a, l.Key, ErrLeased, old.Key)
	}
	if !s.Leases.Has(a) {
		s.addEvent(Begin, a, l, l.Since)
	}
	s.Free.Delete(a)
	delete(s.Owners, a)
	s.Leases.Set(a, l)
	return nil
}

// Found records a lease for an address that an unknown pod uses. The lease l has no key, because no process knows to
// which attachment the address belongs. If the address already has a lease, Found replaces that lease with l.
func (s *State) Found(a netip.Addr, l Lease) {
	if old, ok := s.Leases.At(a); ok {
		s.addEvent(End, a, old, l.Since)
	}
	s.addEvent(Begin, a, l, l.Since)
	s.Free.Delete(a)
	s.Leases.Set(a, l)
}

// EndWhere ends the leases for which match returns true, and returns the addresses of these leases.
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

// EndOf ends the leases of the attachment k, except leases that began after commandStart (see [State.BegunAfter]). The
// attachment possibly uses the addresses in hints. If the lease of such an address has no key, EndOf also ends this
// lease.
func (s *State) EndOf(k Key, now, commandStart time.Time, hints ...netip.Addr) {
	for _, a := range s.Held(k) {
		if l, _ := s.Leases.At(a); !s.BegunAfter(l, commandStart) {
			s.End(a, now)
		}
	}
	for _, a := range hints {
		if l, ok := s.Leases.At(a); ok && l.Key == (Key{}) {
			s.End(a, now)
		}
	}
}

// EndWaiters removes the waiters of all interfaces of the attachment k from State.Waiters. It keeps the entries of
// State.GaveUp: after a failed ADD, a runtime calls DEL, and then repeats the ADD with another container ID.
func (s *State) EndWaiters(k Key) {
	name := k.String()
	maps.DeleteFunc(s.Waiters, func(w string, _ Waiter) bool { return w == name || strings.HasPrefix(w, name+"/") })
}

// End ends the lease of an address. If an ENI still has the address, the address gets an entry in State.Free, and cools
// from cooledSince on. If cooledSince is zero, the address need not cool.
func (s *State) End(a netip.Addr, cooledSince time.Time) {
	l, ok := s.Leases.At(a)
	if ok {
		s.addEvent(End, a, l, cooledSince)
	}
	s.Leases.Delete(a)
	if id, _ := s.ENIOf(a); id != "" {
		s.Free.Set(a, cooledSince)
		if l.Asked && l.PodName != "" {
			s.Owners[a] = l.Pod()
		}
	}
}

// Exclusive returns the IDs of the ENIs that have an exclusive lease. The link of such an ENI is in a pod and not on
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
