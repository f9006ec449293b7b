// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// In all histories, operators change EC2 and the registry in more ways: they attach ENIs and assign addresses by hand,
// drain ENIs, and type commands for addresses.

// attachByHand: an operator attaches an ENI again that an operator has detached. The ENI may be on the second node now.
// In some cases, the operator only detaches the ENI from the second node.
func (m *model) attachByHand() {
	ids := slices.DeleteFunc(m.EC2.ENIs(), func(e ec2sim.ENI) bool {
		return !m.moved[e.ID] || e.Instance == m.ID || e.Status != "available" && e.AttachmentStatus != "attached"
	})
	card, index, found := m.freeSlot(m.Instance)
	if len(ids) == 0 || !found {
		return
	}
	e := pick(m.rng, ids...)
	if e.Instance != "" {
		delete(m.theirs, e.ID)
		m.Operate("DetachNetworkInterface", "AttachmentId", e.Attachment, "Force", "true")
		if m.chance(40) {
			m.logf("%s an operator detaches %s from %s", m.clock(), e.ID, m.second.ID)
			return
		}
	}
	m.meddled, m.outlives[e.ID] = true, true // no process need set DeleteOnTermination
	err := m.EC2.Operate("AttachNetworkInterface", map[string]string{"NetworkInterfaceId": e.ID, "InstanceId": m.ID,
		"NetworkCardIndex": fmt.Sprint(card), "DeviceIndex": fmt.Sprint(index)})
	m.logf("%s an operator attaches %s at %d.%d again: %v", m.clock(), e.ID, card, index, err)
}

// assignByHand: an operator assigns an address or a prefix to an ENI of the node.
func (m *model) assignByHand() {
	e, ok := m.podENI()
	if !ok {
		return
	}
	what := pick(m.rng, "SecondaryPrivateIpAddressCount", "Ipv4PrefixCount")
	err := m.EC2.Operate("AssignPrivateIpAddresses", map[string]string{"NetworkInterfaceId": e.ID, what: "1"})
	m.logf("%s an operator assigns %s to %s: %v", m.clock(), what, e.ID, err)
}

// retire: an operator drains an ENI, or ends this.
func (m *model) retire() {
	s, err := m.view()
	if err != nil {
		return
	}
	ids := slices.DeleteFunc(slices.Sorted(maps.Keys(s.ENIs)), func(id string) bool {
		e := s.ENIs[id]
		return e.IsBoot() || e.OnRequest || e.Retired && e.Draining
	})
	if len(ids) == 0 {
		return
	}
	id := pick(m.rng, ids...)
	m.meddled = true
	m.logf("%s an operator drains %s: %v", m.clock(), id, !s.ENIs[id].Retired)
	must(m, m.run(lease.Policy{}, fate{}, time.Minute, func(ctx context.Context, pool *Pool) error {
		return pool.Registry.Change(ctx, func(s *registry.State) {
			s.Edit(id, func(e *registry.ENI) { e.Retired = !e.Retired })
		})
	}))
}

// allocate: an operator gets addresses for an ENI by name.
func (m *model) allocate() {
	if m.locked("grow") || m.denied != nil {
		return
	}
	f, n := m.fate(), 1+m.rng.IntN(3)
	m.logf("%s an operator allocates %d%v", m.clock(), n, f)
	var id string
	var got []netip.Addr
	err := m.run(lease.Policy{MinIndex: m.policies[0].MinIndex}, f, time.Minute,
		func(ctx context.Context, pool *Pool) (err error) {
			id, got, err = pool.Allocate(ctx, n, m.conflists()...)
			return err
		})
	m.logf("  %v on %q, %v", got, id, err)
}

// release runs the commands that follow the DEL of a pod that has asked for an address or an ENI.
func (m *model) release() {
	if m.locked("grow") || m.locked("collect") {
		return
	}
	f := m.fate()
	m.logf("%s release%v", m.clock(), f)
	policy := lease.Common(append(m.conflists(), m.common)...)
	var gone []netip.Addr
	var detached []string
	err := m.run(policy, f, time.Minute, func(ctx context.Context, pool *Pool) (err error) {
		if gone, err = pool.ReleaseChosen(ctx); err == nil {
			detached, err = pool.DetachUnused(ctx)
		}
		return err
	})
	m.logf("  released %v, detached %v, %v", gone, detached, err)
}
