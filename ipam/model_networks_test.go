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
// run. The networks share a pool or have pools of their own. A pod keeps its addresses, whatever its conflist says
// later. In the end, collections release the addresses that no conflist wants to keep, and nothing else. Multus may
// define the second network. It is then in no conflist file, so that nothing is kept for it.
//
// The second network may allow fewer changes in EC2 than the first. A collection that may not make a change leaves it
// to an ADD of the first network. If no ADD asks EC2 before an intent ends, an unfinished ENI is left for eni-gc. After
// a boot, a network that may change nothing cannot know what the other network has released. So a node with such a
// network does not boot in these histories.

// A network has the state of one policy: of one pool in one conflist.
type network struct {
	name    string
	removed bool // an operator has removed the conflist, or the pool from it
	changed bool // an operator has changed or removed the pool or the conflist
	hidden  bool // no conflist of the node has this network
}

// networks lets an operator change the conflists in this history, and may add a second network.
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
		p.ReuseWait = pick(m.rng, p.ReuseWait, p.ReuseWait, time.Second, 20*time.Minute)
		if m.chance(15) {
			p.Families = m.families()
		}
		if p.Provision = provision; provision == lease.ProvisionNone {
			p.Keep, p.Warm = true, registry.Warm{} // the plugin's validation requires this
		}
		m.policies, m.nets = append(m.policies, p), append(m.nets, network{name: "net2", hidden: hidden})
		m.logf("%s", m.conflist(len(m.policies)-1))
	}
}

func (m *model) families() []lease.Family {
	return pick(m.rng, []lease.Family{lease.IPv4}, []lease.Family{lease.IPv4, lease.IPv6}, []lease.Family{lease.IPv6})
}

// conflist describes the policy with index i, for the log.
func (m *model) conflist(i int) string {
	p := m.policies[i]
	return fmt.Sprintf("%s pool %q: %v prefixes %v batch %d warm %v keep %v index %d hidden %v provision %s",
		m.nets[i].name, p.Pool, p.Families, p.Prefixes, p.Batch, p.Warm, p.Keep, p.MinIndex, m.nets[i].hidden,
		p.Provision)
}

// conflists returns the policies that the node's conflists contain now.
func (m *model) conflists() (all []lease.Policy) {
	for _, i := range m.configured() {
		all = append(all, m.policies[i])
	}
	return all
}

// configured returns the indices of the policies that the node's conflists contain now.
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

// allow lets all networks make all changes in EC2 from now on, if one network could make fewer changes than another.
func (m *model) allow() {
	for i := range m.policies {
		if p := &m.policies[i]; m.mixed {
			p.Keep = p.Keep && p.Provision != lease.ProvisionNone
			p.Provision = lease.ProvisionFull
		}
	}
}

// noteBegun records each unfinished ENI, with the time when the model first saw it.
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

// reuseWait returns how long the addresses of a pool cool, as conf.Conflists does.
func (m *model) reuseWait(pool string) time.Duration {
	wait := time.Duration(-1)
	for _, p := range m.conflists() {
		if p.Pool == lease.Origin(pool) {
			wait = max(wait, p.ReuseWait)
		}
	}
	if wait < 0 {
		return time.Minute // the default
	}
	return wait
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

// verifyWarm checks each pool from which a collection has released addresses: the pool still has as many addresses
// ready as its conflist wants. The argument before is the registry before the collection. The check ignores chosen
// addresses and the addresses of ENIs that serve no network any more: a collection always releases these.
func (m *model) verifyWarm(before *registry.State, done less.Report) {
	s, err := m.view()
	if err != nil {
		return
	}
	for i, p := range m.policies {
		took := slices.ContainsFunc(done.Unassigned, func(a netip.Addr) bool {
			id, e := before.ENIOf(a)
			now := s.ENIs[id]
			_, owned := before.Owners[a]
			l, _ := before.Leases.At(a)
			return id != "" && e.Pool == p.Pool && !now.Closed() && !owned && !l.Asked
		})
		ready := lease.Ready(s, p.Pool, time.Now())
		if want := p.Warm.Left(); took && !m.nets[i].removed && !m.nets[i].hidden && ready < want {
			m.wrong("the collection has left %d addresses of pool %q ready, and %s wants %d", ready, p.Pool,
				m.nets[i].name, want)
		}
	}
}
