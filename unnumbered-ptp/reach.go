// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
)

// The chains "closed" and "callers" serve all pods of a network. So they must fit the destinations of each running pod,
// even of a pod that is older than the configuration. The node's routes and rules for the service loops show these
// destinations. An ADD reads these routes and rules only if the kernel's table differs from the table for the present
// configuration. This is so after a change of the configuration, and as long as pods with other destinations run.

// A loopDsts has the destinations of one pod with a service loop.
type loopDsts struct {
	byENI  []netip.Prefix // destinations to which the pod sends through its ENI
	byNode []netip.Prefix // prefixes of hostCidrs within byENI: the node itself forwards packets to them, see prefNode
}

// loopDstsOf returns the destinations of each pod whose end of the pair on the node is in veths.
func loopDstsOf(veths map[string]nl.Link, routes []nl.Route, rules []nl.Rule) (all []loopDsts) {
	by := map[string]loopDsts{}
	for _, r := range routes {
		if l, ours := veths[r.Dev]; ours && !nl.IsRouted(l.Group) && r.Via.IsValid() {
			x := by[r.Dev]
			x.byENI = append(x.byENI, r.Dst.Masked())
			by[r.Dev] = x
		}
	}
	for _, r := range rules {
		if x, ours := by[r.IIF]; ours && r.Pref == prefNode && r.To.IsValid() {
			x.byNode = append(x.byNode, r.To)
			by[r.IIF] = x
		}
	}
	for _, x := range by {
		all = append(all, x)
	}
	return all
}

// allLoopDsts returns the destinations that the chains "closed" and "callers" must fit: those of the request's own pod,
// if there is one, and those of other pods.
func (r *request) allLoopDsts() []loopDsts {
	if r.Prev == nil {
		return r.others
	}
	return append([]loopDsts{{byENI: dstsByENI(r, pair{addrs: r.addrs})}}, r.others...)
}

// commonLoopDsts returns the destinations that all pods reach through their ENIs, in the family f. A pod without
// destinations of the family does not count: it lacks the family, or has lost its routes.
func (r *request) commonLoopDsts(f nl.Family) (all []netip.Prefix) {
	var lists [][]netip.Prefix
	for _, x := range r.allLoopDsts() {
		if of := sortedPrefixes(f, x.byENI); len(of) > 0 {
			lists = append(lists, of)
		}
	}
	for _, p := range slices.Concat(lists...) {
		covers := func(q netip.Prefix) bool { return q.Bits() <= p.Bits() && q.Overlaps(p) }
		without := func(list []netip.Prefix) bool { return !slices.ContainsFunc(list, covers) }
		if !slices.ContainsFunc(lists, without) {
			all = append(all, p)
		}
	}
	return all
}

// allByNode returns the prefixes of a family that pods reach through the node: the prefixes of hostCidrs, and the
// prefixes that other pods have in byNode.
func (r *request) allByNode(f nl.Family) []netip.Prefix {
	all := slices.Clone(r.Config.hostCIDRs)
	for _, x := range r.others {
		all = append(all, x.byNode...)
	}
	return sortedPrefixes(f, all)
}

// installNodeWiring installs the objects of nodeWiring. The network's table also fits the network's other pods.
func (s *scene) installNodeWiring() error {
	w := nodeWiring(s.request, s.node)
	for i, step := range w {
		if t, is := step.Object.(nl.Table); is && t.Name == nl.OwnTableOf(s.Network) {
			w[i].Object = preparedTable{t, s.tableForAllPods}
		}
	}
	return install(w)
}

// tableForAllPods returns the network's table for the pod and all other pods of the network.
func (s *scene) tableForAllPods() (nl.Table, error) {
	veths, err1 := pairsOf(s.nodeNS, s.Network)
	routes, err2 := s.nodeNS.Routes(nl.RouteFilter{Protocol: nl.RouteProtocol})
	rules, err3 := s.nodeNS.Rules()
	r := *s.request
	r.others = loopDstsOf(veths, routes, rules)
	return nodeTable(&r, s.node), errors.Join(err1, err2, err3)
}

// A preparedTable has an Add method that compares the Table with the kernel's table. If the two differ, Add adds the
// table that prepare returns.
type preparedTable struct {
	nl.Table
	prepare func() (nl.Table, error)
}

func (t preparedTable) Add(n *nl.NS) error { return t.AddPrepared(n, t.prepare) }
