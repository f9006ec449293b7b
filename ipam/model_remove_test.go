// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// removeInterface: an operator removes an ENI of the node, whatever the node does with it.
func (m *model) removeInterface() {
	if m.locked("collect") {
		return
	}
	var ids []string
	for _, e := range m.EC2.ENIs() {
		_, given := m.given[e.ID]
		_, theirs := m.theirs[e.ID]
		if e.Instance == m.ID && !e.Boot && !given && !theirs && e.ID != m.guest && !e.EFAOnly {
			ids = append(ids, e.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	id, f := pick(m.rng, ids...), m.fate()
	m.logf("%s an operator removes %s%v", m.clock(), id, f)
	policy := lease.Common(append(m.conflists(), m.common)...)
	policy.Provision = "" // as the tool does
	m.meddled, m.moved[id] = true, true
	err := m.run(policy, f, time.Minute, func(ctx context.Context, pool *Pool) error { return pool.Remove(ctx, id) })
	m.logf("  %v", err)
}
