// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package fleet

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// A node is an instance with pods. Each call of a method simulates a process of the node's plugin. The methods are safe
// for concurrent use. The kubelet repeats a failed ADD or DEL.
type node interface {
	launch() error                  // starts the instance
	boot(ctx context.Context) error // does the plugin's work before the node's first pod
	add(ctx context.Context, pod string) error
	del(ctx context.Context, pod string) error
	collect(ctx context.Context) error // the function timer calls it every five to seven minutes
	idle() (int, error)                // returns the number of the node's addresses that no pod has
}

// A kubelet starts and ends pods of its node.
type kubelet struct {
	node
	*place
	stats *stats
	pods  []string // names of the pods that run or start
	count int
	seed  uint64
}

// The kubelet repeats a failed call after 10 to 15 seconds (kubernetes, pkg/kubelet/kubelet.go, backOffPeriod, and
// pod_workers.go, workerBackOffPeriodJitterFactor).
const again, againJitter = 10 * time.Second, 5 * time.Second

// until repeats the function "do". It returns when "do" has succeeded or ctx is done, and reports whether "do" has
// succeeded.
func (k *kubelet) until(ctx context.Context, own *place, do func() error) bool {
	for do() != nil {
		k.stats.fails()
		select {
		case <-ctx.Done():
			return false
		case <-time.After(again + own.jitter(againJitter)):
		}
	}
	return true
}

// start starts a pod. It reports whether the pod runs before ctx is done.
func (k *kubelet) start(ctx context.Context, pod string, own *place) bool {
	began := time.Now()
	ok := k.until(ctx, own, func() error { return k.add(context.WithoutCancel(ctx), pod) })
	if ok {
		k.stats.runs(time.Since(began))
	}
	return ok
}

// next returns the name and the place of a new pod. The place gives the pod its own random times, because several pods
// may act at the same nanosecond.
func (k *kubelet) next() (name string, own *place) {
	k.count++
	return fmt.Sprintf("n%d-p%d", k.index, k.count), newPlace(k.seed+uint64(k.count)<<32, k.index)
}

// startAll starts the node's pods concurrently. Each pod starts at a random time within one second.
func (k *kubelet) startAll(ctx context.Context, pods int) {
	var wg sync.WaitGroup
	for range pods {
		pod, own := k.next()
		k.pods = append(k.pods, pod)
		wg.Go(func() {
			time.Sleep(own.jitter(time.Second))
			k.start(ctx, pod, own)
		})
	}
	wg.Wait()
}

// replace replaces each pod by a new pod, and at most one pod per interval. The new pod runs before the old pod ends.
func (k *kubelet) replace(ctx context.Context, every time.Duration) {
	time.Sleep(k.jitter(every))
	for i, old := range k.pods {
		began := time.Now()
		pod, own := k.next()
		if !k.start(ctx, pod, own) {
			return
		}
		k.pods[i] = pod
		if !k.until(ctx, own, func() error { return k.del(context.WithoutCancel(ctx), old) }) {
			return
		}
		if i < len(k.pods)-1 {
			time.Sleep(max(every-time.Since(began), 0) + own.jitter(time.Millisecond))
		}
	}
}

// An experience has the waiting times of the pods in a phase.
type experience struct {
	waits  []time.Duration // how long each pod waited until it ran, sorted
	ends   []time.Duration // time from the start of the phase until each pod ran, sorted
	failed int             // number of failed ADDs and DELs; the kubelet repeats them
}

// A stats collects the experience of the pods of all nodes.
type stats struct {
	mu    sync.Mutex
	began time.Time
	experience
}

func (s *stats) runs(wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits, s.ends = append(s.waits, wait), append(s.ends, time.Since(s.began))
}

func (s *stats) fails() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed++
}

func (s *stats) cut() experience {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.experience
	slices.Sort(done.waits)
	slices.Sort(done.ends)
	s.experience, s.began = experience{}, time.Now()
	return done
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}
