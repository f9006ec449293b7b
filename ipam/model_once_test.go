// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// TestModelAtOnce plays histories of TestModel's model in real time, with processes that run at once. Each process
// opens the lock files itself.
func TestModelAtOnce(t *testing.T) {
	n := 150
	if testing.Short() {
		n = 5
	}
	simtest.Credentials(t)
	playAll(t, 0, n, 4, oneKernel, func(t *testing.T, k *kernel, seed uint64) { // the processes mostly wait
		defer k.end(t)
		m := newModel(t, k, filepath.Join(simtest.Memory(t), "state"), seed, true)
		for i := range m.policies {
			m.policies[i].ReuseWait = 0
		}
		for range 4 {
			m.rush()
			m.verify()
		}
		if len(m.bad) > 0 {
			m.Errorf("%s\n\nthe history:\n%s", strings.Join(m.bad, "\n"), strings.Join(m.log, "\n"))
		}
	})
}

// rush adds pods, ends pods, and runs collections and GCs, all at once.
func (m *model) rush() {
	var wg sync.WaitGroup
	do := func(policy lease.Policy, f func(context.Context, *Pool)) {
		pool := (&process{model: m}).pool(policy)
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(m.Context(), forever)
			defer cancel()
			f(ctx, pool)
		})
	}
	for _, p := range m.pods {
		if p.valid && m.chance(50) {
			p.alive, p.valid = false, false
			m.kernel.stop(m, p.ContainerID)
			do(lease.Policy{}, func(ctx context.Context, pool *Pool) {
				if err := pool.End(ctx, p.Key, p.addrs...); err != nil {
					m.Errorf("DEL of %s: %v", p.ContainerID, err)
				}
			})
		}
	}
	type try struct {
		*modelPod
		got lease.Allocation
		err error
	}
	var tries []*try
	for range 1 + m.rng.IntN(6) {
		a := &try{modelPod: m.newPod()}
		if a.valid = m.kernel.start(m, a.ContainerID); !a.valid {
			break
		}
		tries = append(tries, a)
		do(m.policies[a.policy], func(ctx context.Context, pool *Pool) {
			a.got, a.err = m.obtain(ctx, pool, a.Owner, pool.Acquire)
		})
	}
	if m.chance(60) {
		c := less.Collection{Max: -1, Conflists: m.conflists(), ReuseWait: m.reuseWait}
		do(lease.Policy{}, func(ctx context.Context, pool *Pool) {
			if _, err := pool.Collect(ctx, c); err != nil {
				m.Errorf("collect: %v", err)
			}
		})
	}
	answers := m.rushCommands(do)
	wg.Wait()
	m.verifyRushed(answers)
	for _, a := range tries {
		m.logf("%s has %v on %s, %v", a.ContainerID, a.got.Addrs, a.got.ID, a.err)
		if a.err == nil {
			m.answered(a.modelPod, a.got)
		}
	}
}
