// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// In some histories, the node has two networks, with a conflist each, and an operator changes the conflists while pods
// run. The networks share a pool or have pools of their own. A pod keeps what it has, whatever its conflist says later.
// In the end, collections release what no conflist wants to keep, and nothing else. Multus may make the second network,
// which is then in no conflist file, so that nothing is kept for it.
//
// The second network may allow fewer changes in EC2 than the first. Collections then leave to ADDs what they may not
// do. If no ADD asks EC2 before an intent ends, an unfinished ENI is left for eni-gc. After a boot, a network that may
// change nothing cannot know what the other network has released. So such a node does not boot.

// A network is what one conflist says about one pool.
type network struct {
	name    string
	removed bool // an operator has removed it from the conflist, or the conflist
	changed bool // an operator has changed or removed it once
	hidden  bool // no conflist of the node has it
}

// networks makes conflists change, and may add a second network.
func (m *model) networks() {
	m.changes = true
	if m.chance(40) {
		return
	}
	hidden := m.multus && m.chance(30)
	provision := pick(m.rng, lease.ProvisionFull, lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone)
	m.mixed = provision != lease.ProvisionFull
	m.noBoot = provision == lease.ProvisionNone
	for _, p := range m.policies {
		if p.Pools && p.Pool == "" && m.chance(50) {
			continue // the second network has one pool
		}
		p.MinIndex, p.Prefixes, p.Keep, p.Batch = pick(m.rng, p.MinIndex, p.MinIndex, 1,
			0), m.chance(30), m.chance(10), pick(m.rng, 1, 3, 0)
		p.Warm = pick(m.rng, registry.Warm{}, registry.Warm{}, registry.Warm{Min: 1, Max: 6})
		if m.chance(15) {
			p.Families = m.families()
		}
		if p.Provision = provision; provision == lease.ProvisionNone {
			p.Keep, p.Warm = true, registry.Warm{} // as the plugin's validation has it
		}
		m.policies, m.nets = append(m.policies, p), append(m.nets, network{name: "net2", hidden: hidden})
		m.logf("%s", m.conflist(len(m.policies)-1))
	}
}

func (m *model) families() []lease.Family {
	return pick(m.rng, []lease.Family{lease.IPv4}, []lease.Family{lease.IPv4, lease.IPv6}, []lease.Family{lease.IPv6})
}

// conflist describes one of the policies.
func (m *model) conflist(i int) string {
	p := m.policies[i]
	return fmt.Sprintf("%s pool %q: %v prefixes %v batch %d warm %v keep %v index %d hidden %v provision %s",
		m.nets[i].name, p.Pool, p.Families, p.Prefixes, p.Batch, p.Warm, p.Keep, p.MinIndex, m.nets[i].hidden,
		p.Provision)
}

// conflists returns the policies that the conflists have now.
func (m *model) conflists() (all []lease.Policy) {
	for _, i := range m.configured() {
		all = append(all, m.policies[i])
	}
	return all
}

// configured returns the indices of the policies that the conflists have now.
func (m *model) configured() (all []int) {
	for i := range m.policies {
		if n := m.nets[i]; !n.removed && !n.hidden {
			all = append(all, i)
		}
	}
	return all
}

// reconfigure changes a conflist.
func (m *model) reconfigure() {
	if !m.changes {
		return
	}
	i := m.rng.IntN(len(m.policies))
	p, n := &m.policies[i], &m.nets[i]
	switch pick(m.rng, "index", "prefixes", "keep", "warm", "families", "remove", "restore") {
	case "index":
		p.MinIndex = 1 - p.MinIndex
	case "prefixes":
		p.Prefixes = !p.Prefixes
	case "keep":
		p.Keep = !p.Keep || p.Provision == lease.ProvisionNone
	case "warm":
		if p.Warm = pick(m.rng, registry.Warm{}, registry.Warm{Min: 1}, registry.Warm{Min: 2,
			Max: 6}); p.Provision == lease.ProvisionNone {
			p.Warm = registry.Warm{}
		}
	case "families":
		p.Families = m.families()
	case "remove":
		n.removed = (n.hidden || len(m.configured()) > 1) && m.conf == nil
	case "restore":
		n.removed = false
	}
	if n.changed = true; m.conf != nil {
		m.configure()
	}
	m.logf("%s configuration: %s, removed %v", m.clock(), m.conflist(i), n.removed)
}

// allow allows all networks all changes from now on, if one may change less than another.
func (m *model) allow() {
	for i := range m.policies {
		if p := &m.policies[i]; m.mixed {
			p.Keep = p.Keep && p.Provision != lease.ProvisionNone
			p.Provision = lease.ProvisionFull
		}
	}
}

// noteBegun records the unfinished ENIs, and since when they exist.
func (m *model) noteBegun() {
	for _, e := range m.EC2.ENIs() {
		_, noted := m.begunAt[e.ID]
		switch begun := e.Status == "available" || e.Instance == m.ID && !e.DeleteOnTermination; {
		case !begun:
			delete(m.begunAt, e.ID)
		case !noted:
			m.begunAt[e.ID] = m.sighting()
		}
	}
}

// noteAbandoned records the unfinished ENIs that no process may finish any more, because a collection has ended their
// intents.
func (m *model) noteAbandoned() {
	for id, began := range m.begunAt {
		if m.mixed && (time.Since(began.when) > intentLife || began.losses < m.losses) {
			m.abandoned[id] = true
		}
	}
}

// keep reports whether a conflist wants to keep addresses of the pool: by skipDeallocation, or by warm.min.
func (m *model) keep(pool string) bool {
	return slices.ContainsFunc(m.conflists(), func(p lease.Policy) bool {
		return p.Pool == lease.Origin(pool) && (p.Keep || p.Warm.Min > 0)
	})
}

// verifyKept checks that a call takes nothing from a pool for which a conflist has always had skipDeallocation.
func (m *model) verifyKept(c ec2sim.Call) {
	e := m.find(c.Params["NetworkInterfaceId"])
	if e == nil || !strings.HasPrefix(c.Action, "Unassign") {
		return
	}
	pool := lease.Origin(book.PoolOf(aws.ENI{Tags: e.Tags}))
	for i, p := range m.policies {
		if n := m.nets[i]; p.Keep && !n.changed && !n.hidden && p.Pool == pool &&
			p.Serves(registry.ENI{Index: e.Index, Boot: e.Boot}) {
			m.wrong("%v: %s has skipDeallocation", c, n.name)
		}
	}
}

// verifyWarm checks that a collection has left ready what the conflists want, in the pools from which it has taken
// addresses. The argument before is the registry before the collection. An ENI that serves no network any more has
// nothing ready. Chosen addresses are released in any case.
func (m *model) verifyWarm(before *registry.State, done less.Report) {
	s, err := m.view()
	if err != nil {
		return
	}
	for i, p := range m.policies {
		took := slices.ContainsFunc(done.Unassigned, func(a netip.Addr) bool {
			id, e := before.ENIOf(a)
			_, owned := before.Owners[a]
			l, _ := before.Leases.At(a)
			return id != "" && e.Pool == p.Pool && !s.ENIs[id].Passed && !owned && !l.Asked
		})
		ready := lease.Ready(s, p.Pool, time.Now())
		if want := p.Warm.Left(); took && !m.nets[i].removed && !m.nets[i].hidden && ready < want {
			m.wrong("the collection has left %d addresses of pool %q ready, and %s wants %d", ready, p.Pool,
				m.nets[i].name, want)
		}
	}
}
