// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package view

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin/egress"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/cli"
)

// An EgressPod is a pod of the node that is a client or a router of an egress.
type EgressPod struct {
	Role     string     `json:"role"` // client or router
	Pod      string     `json:"pod"`  // namespace/name; without a lease, the path of its network namespace
	Addr     netip.Addr `json:"ip"`
	Sent     uint64     `json:"sent"`     // packets into the tunnel
	Received uint64     `json:"received"` // packets out of the tunnel
	Refused  uint64     `json:"refused"`  // packets that the pod's table of nftables has dropped

	Forwarded uint64 `json:"forwarded" head:"-"` // routers only: forwarded packets from clients
	Answered  uint64 `json:"answered" head:"-"`  // routers only: forwarded answers to clients
}

// EgressPods finds the clients and routers of egresses in all network namespaces. It takes the pods' names from the
// registry. If a namespace cannot be read, EgressPods returns an error, together with the pods of all other namespaces.
func EgressPods(s *registry.State) (all []EgressPod, err error) {
	err = lease.EachNetNS(func(ns *nl.NS) error {
		state, err := egress.Read(ns)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		p := EgressPod{Role: state.Role, Pod: ns.Name, Sent: state.Sent, Received: state.Received,
			Refused:   state.Refused,
			Forwarded: state.Forwarded, Answered: state.Answered}
		if len(state.Addrs) > 0 {
			p.Addr = state.Addrs[0]
		}
		if l, leased := s.Leases.At(p.Addr); leased {
			p.Pod = Owner(l)
		}
		if err == nil {
			all = append(all, p)
		}
		return err
	})
	slices.SortFunc(all, func(a, b EgressPod) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Pod, b.Pod))
	})
	return all, err
}

// An EgressStatus counts the clients and routers of this node, and the packets that they have dropped.
type EgressStatus struct {
	Clients int    `json:"clients"`
	Routers int    `json:"routers"`
	Refused uint64 `json:"refused"`
}

// EgressStatusOf counts the pods and their refused packets.
func EgressStatusOf(all []EgressPod) (n EgressStatus) {
	for _, p := range all {
		if p.Role == egress.Router {
			n.Routers++
		} else {
			n.Clients++
		}
		n.Refused += p.Refused
	}
	return n
}

func (n EgressStatus) print(w io.Writer) {
	if n.Clients+n.Routers > 0 {
		fmt.Fprintf(w, "egress: %s, %s, %s refused\n", cli.Count(n.Clients, "client"), cli.Count(n.Routers, "router"),
			cli.Count(int(n.Refused), "packet"))
	}
}

// EgressMetrics returns metrics about all clients together, and about all routers together, because a node may have
// many clients.
func EgressMetrics(all []EgressPod) []Metric {
	pods := Metric{Name: "egress_pods", Help: "Pods of the node that are clients or routers of an egress."}
	packets := Metric{Name: "egress_packets",
		Help: "Packets that clients or routers of an egress have sent into tunnels and received from tunnels, " +
			"since each pod started."}
	refused := Metric{Name: "egress_refused_packets",
		Help: "Packets that clients or routers of an egress have dropped. From a tunnel, a client takes only " +
			"answers, and a router takes only packets of clients."}
	for _, role := range []string{egress.Client, egress.Router} {
		var n EgressPod
		count := 0
		for _, p := range all {
			if p.Role == role {
				count++
				n.Sent, n.Received, n.Refused = n.Sent+p.Sent, n.Received+p.Received, n.Refused+p.Refused
			}
		}
		pods.Add(float64(count), "role", role)
		packets.Add(float64(n.Sent), "role", role, "direction", "sent")
		packets.Add(float64(n.Received), "role", role, "direction", "received")
		refused.Add(float64(n.Refused), "role", role)
	}
	return []Metric{pods, packets, refused}
}
