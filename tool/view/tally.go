// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// The states of an address.
const (
	StateReserved = "reserved" // leased; the kernel has not shown the address in the pod yet
	StateBound    = "bound"    // leased, and the kernel has the address in the pod
	StateCooling  = "cooling"  // not leased any more, but no pod gets it yet
	StateFree     = "free"
	StateNode     = "node" // neither leased nor free: the node itself uses the address
)

// A Holding is an address of the node, with its state and its owner.
type Holding struct {
	Addr      netip.Addr `json:"ip"`
	State     string     `json:"state"`     // reserved, bound, cooling, free, node
	Namespace string     `json:"namespace"` // of the pod; "" outside Kubernetes
	Pod       string     `json:"pod"`
	Container string     `json:"container"`
	IfName    string     `json:"ifname"`
	NetNS     string     `json:"netns"`
	ENI       string     `json:"eni"` // "": on no ENI that the registry knows
	Pool      string     `json:"pool"`
	Since     *time.Time `json:"since"` // when it was leased, or became free; null: never used, or the node's address
	Until     *time.Time `json:"until"` // when the address becomes free; null: it does not cool
}

// Leased reports whether a pod has the address.
func (h Holding) Leased() bool { return h.State == StateReserved || h.State == StateBound }

// Owner names the pod that has the address. If the pod's name is not known, Owner returns the path of the pod's network
// namespace. If this path is not known, Owner returns the ID of the pod's container.
func (h Holding) Owner() string {
	if h.Pod != "" {
		return h.Namespace + "/" + h.Pod
	}
	return cmp.Or(h.NetNS, h.Container)
}

// Tally lists the addresses that the registry knows, in the order of the addresses. These are the addresses of ENIs,
// and all addresses of /28 prefixes. Of a /80 prefix, the list has only addresses that were ever used. Leased and free
// addresses that are no longer on an ENI count, too.
func Tally(s *registry.State, wait func(pool string) time.Duration, now time.Time) []Holding {
	on := map[netip.Addr]string{} // the ENI of each address
	for id, e := range s.ENIs {
		for _, a := range e.Addrs {
			on[a] = id
		}
		for _, p := range e.Prefixes {
			if p.CIDR.Addr().Is6() {
				continue
			}
			for a := range addrsIn(p.CIDR) {
				on[a] = id
			}
		}
	}
	for _, a := range slices.AppendSeq(slices.Collect(s.Leases.Keys()), s.Free.Keys()) {
		if _, ok := on[a]; !ok {
			on[a], _ = s.ENIOf(a)
		}
	}
	all := make([]Holding, 0, len(on))
	for _, a := range slices.SortedFunc(maps.Keys(on), netip.Addr.Compare) {
		all = append(all, holdingOf(s, a, on[a], wait, now))
	}
	return all
}

// addrsIn yields the addresses of a prefix. The prefix must not be a /80, because a /80 has too many addresses.
func addrsIn(p netip.Prefix) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := p.Masked().Addr(); p.Contains(a) && yield(a); {
			a = a.Next()
		}
	}
}

// holdingOf returns what the registry knows about an address on an ENI.
func holdingOf(s *registry.State, a netip.Addr, eni string, wait func(string) time.Duration, now time.Time) Holding {
	e := s.ENIs[eni]
	h := Holding{Addr: a, ENI: eni, Pool: conf.PoolName(e.Pool)}
	if l, leased := s.Leases.At(a); leased {
		h.State = StateReserved
		if l.Bound {
			h.State = StateBound
		}
		h.Namespace, h.Pod, h.Container, h.IfName, h.NetNS = l.PodNamespace, l.PodName, l.ContainerID, l.IfName, l.NetNS
		h.Since = Moment(l.Since)
		return h
	}
	since, free := s.Free.At(a)
	if !free && slices.Contains(e.Addrs, a) {
		h.State = StateNode
		return h
	}
	h.State, h.Since = StateFree, Moment(since)
	if until := since.Add(wait(e.Pool)); free && until.After(now) {
		h.State, h.Until = StateCooling, Moment(until)
	}
	return h
}

// Moment returns a time for JSON, or nil for the zero time.
func Moment(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return new(Seconds(t))
}

// Seconds returns a time without fractions of a second.
func Seconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }

// Brief formats a duration in its largest unit: 37s, 12m, 5h, 3d.
func Brief(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// counts are the numbers of addresses, by state.
type counts struct {
	Leased  int `json:"leased"` // reserved and bound
	Free    int `json:"free"`
	Cooling int `json:"cooling"`
}

func (n *counts) add(h Holding) {
	switch {
	case h.Leased():
		n.Leased++
	case h.State == StateCooling:
		n.Cooling++
	case h.State == StateFree:
		n.Free++
	}
}

func countBy(all []Holding, match func(Holding) bool) (n counts) {
	for _, h := range all {
		if match(h) {
			n.add(h)
		}
	}
	return n
}

// Owner names the pod of a lease.
func Owner(l registry.Lease) string {
	return Holding{Namespace: l.PodNamespace, Pod: l.PodName, NetNS: l.NetNS, Container: l.ContainerID}.Owner()
}
