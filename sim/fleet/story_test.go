// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// A plan has the size of a fleet, and says what happens to the fleet.
type plan struct {
	nodes, pods int // pods is the number of pods of each node
	seed        uint64
	ramp        bool          // if true, nodes start as fast as RunInstances allows; otherwise all nodes start at once
	replace     bool          // if true, all pods are replaced, and once more while EC2 refuses all calls
	churn       int           // how many pods per second the fleet replaces
	horizon     time.Duration // maximum duration of each phase
	hour        time.Duration // how long EC2 refuses all calls
}

func (p plan) arrivals() []time.Duration {
	at := make([]time.Duration, p.nodes)
	if !p.ramp {
		return at
	}
	// An autoscaler checks every 10 seconds whether it needs nodes (Cluster Autoscaler, --scan-interval). Each time, it
	// launches as many nodes as RunInstances has tokens in its resource bucket. The bucket has 1000 tokens at first,
	// and gets 2 more per second (EC2 developer guide, "Request throttling for the Amazon EC2 API").
	const scan, size, refill = 10 * time.Second, 1000, 2
	tokens := size
	for i, now := 0, time.Duration(0); i < p.nodes; now += scan {
		for ; tokens > 0 && i < p.nodes; i++ {
			at[i], tokens = now, tokens-1
		}
		tokens = min(size, tokens+int(scan/time.Second)*refill)
	}
	return at
}

// A phase has the figures of a finished part of the simulation.
type phase struct {
	experience
	bound         time.Duration
	made, refused map[string]int
	pods          int // number of pods that should run
}

// A result has the figures of one way.
type result struct {
	way
	scale, roll, hour phase
	idle              int      // number of addresses without a pod at the end
	bad               []string // violations and leaks
}

// A fleet has the nodes of one way.
type fleet struct {
	*testing.T
	plan
	way
	*ledger
	kubelets []*kubelet
	stats    *stats
	owners   *owners
	region   *region // nil if the way is a model of another plugin
	throttle func(bool)
}

// play simulates a fleet in one way, from the start of the nodes to the check for leaks.
func play(t *testing.T, p plan, w way) (r result) {
	t.Helper()
	const memory = 7 << 30
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // much garbage arises, and the machine has enough memory
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memory))
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.DiscardHandler))
	simtest.Credentials(t)
	dir := simtest.Memory(t)
	t.Run(w.name, func(outside *testing.T) {
		synctest.Test(outside, func(t *testing.T) {
			f := newFleet(t, outside, dir, p, w)
			r = f.play()
		})
	})
	return r
}

func newFleet(t, outside *testing.T, dir string, p plan, w way) *fleet {
	f := &fleet{T: t, plan: p, way: w, stats: &stats{began: time.Now()}, owners: newOwners()}
	var next func(*place) node
	if w.model != nil {
		a := newAccount()
		f.ledger, f.throttle = a.ledger, func(on bool) { a.closed = on }
		next = func(at *place) node { return w.model(a, at) }
	} else {
		r, err := newRegion(func(string) *host { return newHost(outside) })
		if err != nil {
			t.Fatal(err)
		}
		f.region, f.ledger, f.throttle = r, r.ledger, r.throttle
		next = func(at *place) node {
			return &ours{place: at, region: r, way: w, dir: filepath.Join(dir, fmt.Sprint("n", at.index)),
				queue: make(chan struct{}, 1), turn: make(chan struct{}, 1), owners: f.owners}
		}
	}
	for i := range p.nodes {
		at := newPlace(p.seed, i)
		f.kubelets = append(f.kubelets, &kubelet{node: next(at), place: at, stats: f.stats, seed: p.seed})
	}
	return f
}

func (f *fleet) play() (r result) {
	r.way = f.way
	always, stop := context.WithCancel(context.Background())
	defer stop()
	arrivals := f.arrivals()
	var timers sync.WaitGroup
	r.scale = f.phase(bound(f.needs, arrivals), func(ctx context.Context, k *kubelet) {
		time.Sleep(arrivals[k.index] + k.jitter(time.Second))
		if err := k.launch(); err != nil {
			f.Error(err)
			return
		}
		timers.Go(func() { timer(always, k) })
		if err := k.boot(always); err != nil {
			f.Error(err)
		}
		k.startAll(ctx, f.pods)
	})
	if f.plan.replace {
		f.replaceAll(&r)
	}
	// During this time, collections finish what killed processes have begun (see intentLife).
	const finish = 25 * time.Minute
	time.Sleep(finish)
	stop()
	timers.Wait()
	const over = time.Hour // time for the work in the background to end
	time.Sleep(over)
	for _, k := range f.kubelets {
		idle, err := k.idle()
		if err != nil {
			f.Error(err)
		}
		r.idle += idle
	}
	r.bad = append(f.owners.bad, f.leaks()...)
	return r
}

// replaceAll replaces all pods in turn. Then it replaces all pods once more, while EC2 refuses all calls for an hour.
func (f *fleet) replaceAll(r *result) {
	time.Sleep(time.Minute)
	every := time.Duration(f.nodes) * time.Second / time.Duration(f.churn)
	atOnce := make([]time.Duration, f.nodes)
	least := max(bound(f.churns, atOnce), every*time.Duration(f.pods),
		bound(f.first, atOnce)+every*time.Duration(f.pods-1))
	r.roll = f.phase(least, func(ctx context.Context, k *kubelet) { k.replace(ctx, every) })
	const rest = 20 * time.Minute // during this time, collections release addresses and ENIs that no pod uses
	time.Sleep(rest)
	f.throttle(true)
	r.hour = f.phase(f.hour, func(ctx context.Context, k *kubelet) { k.replace(ctx, f.hour/time.Duration(f.pods+1)) })
	f.throttle(false)
}

// phase calls act for each node. The context of these calls ends after the plan's horizon. phase returns when all calls
// have returned.
func (f *fleet) phase(least time.Duration, act func(context.Context, *kubelet)) phase {
	f.stats.cut()
	f.cut()
	ctx, cancel := context.WithTimeout(context.Background(), f.horizon)
	defer cancel()
	var all sync.WaitGroup
	for _, k := range f.kubelets {
		all.Go(func() { act(ctx, k) })
	}
	all.Wait()
	done := phase{experience: f.stats.cut(), bound: least, pods: f.nodes * f.pods}
	done.made, done.refused = f.cut()
	return done
}

// timer simulates cni-gc.timer. For a model of another plugin, it calls the method collect of the model.
func timer(ctx context.Context, k *kubelet) {
	const every, random = 5 * time.Minute, 2 * time.Minute
	own := newPlace(k.seed, k.index)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(every + own.jitter(random)):
			_ = k.collect(context.WithoutCancel(ctx)) // EC2 may refuse a call; the next collection continues the work
		}
	}
}

// leaks returns violations at the end: ENIs without an instance, leases without a pod, and addresses that only the
// registry or only EC2 has.
func (f *fleet) leaks() (bad []string) {
	if f.region == nil {
		return nil
	}
	for _, e := range f.region.sim.ENIs() {
		if e.Instance == "" {
			bad = append(bad, fmt.Sprintf("%s is attached nowhere", e.ID))
		}
	}
	for _, k := range f.kubelets {
		bad = append(bad, k.node.(*ours).leaks(len(k.pods))...)
	}
	return bad
}
