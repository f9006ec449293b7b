// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/paths"
)

// The demo adds twelve pods to each node, in three steps. Each constant is the number of pods that one step adds.
const (
	firstPods = 4 // at the same time, on a node that has only its boot ENI
	sparePods = 6 // one by one; the tool has got addresses for these pods in advance
	lastPods  = 2 // at the same time, when the first ENI for pods is full
)

// addResults has the durations of ADDs. A warm ADD finds a free address on the node. A cold ADD asks EC2 for addresses.
type addResults struct {
	cold, warm []time.Duration

	warmCalls, warmMetadata int // the numbers of calls to EC2 and to metadata during warm ADDs
}

func (s *scene) addPods(ctx context.Context, out *output) (addResults, error) {
	var a addResults
	for _, n := range s.Nodes {
		out.showProgress("%s: %d pods at once on an instance with its boot ENI only", n.Name, firstPods)
		took, err := s.addAtOnce(ctx, n, firstPods)
		if err != nil {
			return a, err
		}
		a.cold = append(a.cold, took...)
		if err := s.runTool(ctx, n, "allocate-first-available", "--index=1", "--ip_batch_size="+
			strconv.Itoa(sparePods)); err != nil {
			return a, err
		}
		if err := s.addWarm(ctx, n, &a, out); err != nil {
			return a, err
		}
		out.showProgress("%s: %d more pods, for which the node needs another ENI", n.Name, lastPods)
		if took, err = s.addAtOnce(ctx, n, lastPods); err != nil {
			return a, err
		}
		a.cold = append(a.cold, took...)
	}
	return a, nil
}

// addAtOnce adds count pods at the same time, and returns how long each ADD took.
func (s *scene) addAtOnce(ctx context.Context, n *paths.Node, count int) ([]time.Duration, error) {
	pods, took, errs := make([]*paths.Pod, count), make([]time.Duration, count), make([]error, count)
	var wg sync.WaitGroup
	for i := range count {
		name := fmt.Sprintf("%s-pod%d", n.Name, len(n.Pods)+i+1)
		wg.Go(func() {
			start := time.Now()
			pods[i], errs[i] = n.Add(ctx, "demo", name)
			took[i] = time.Since(start)
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	n.Pods = append(n.Pods, pods...)
	return took, nil
}

func (s *scene) addWarm(ctx context.Context, n *paths.Node, a *addResults, out *output) error {
	calls, metadata := len(s.EC2.Calls()), len(n.MetadataCalls())
	for i := range sparePods {
		out.showProgress("%s: pod %d, which gets a free address", n.Name, firstPods+i+1)
		took, err := s.addAtOnce(ctx, n, 1)
		if err != nil {
			return err
		}
		a.warm = append(a.warm, took...)
	}
	a.warmCalls += len(s.EC2.Calls()) - calls
	a.warmMetadata += len(n.MetadataCalls()) - metadata
	return nil
}

func (s *scene) deletePods(ctx context.Context, out *output) error {
	calls := len(s.EC2.Calls())
	var took []time.Duration
	for _, n := range s.Nodes {
		for _, p := range n.Pods {
			out.showProgress("deleting %s", p.Name)
			start := time.Now()
			if err := n.Del(ctx, p); err != nil {
				return err
			}
			took = append(took, time.Since(start))
		}
	}
	out.printDurations("DEL", "without EC2", took, fmt.Sprintf("EC2 calls %d", len(s.EC2.Calls())-calls))
	return nil
}

// checkNothingLeft releases all addresses and ENIs of the pods, and looks for leftovers in EC2 and on the nodes.
func (s *scene) checkNothingLeft(ctx context.Context, out *output, before [][]string) error {
	const freeAfter = time.Second
	out.showProgress("registry-gc")
	select {
	// The pods' addresses cool for a minute, the default of reuseIPWait. Until then, registry-gc does not release them.
	case <-time.After(time.Minute + freeAfter):
	case <-ctx.Done():
		return ctx.Err()
	}
	calls := len(s.EC2.Calls())
	for _, n := range s.Nodes {
		if err := s.runTool(ctx, n, "registry-gc", "--free-after="+freeAfter.String()); err != nil {
			return err
		}
	}
	out.printLine("GC   registry-gc --free-after=%s on each node calls EC2:", freeAfter)
	out.printLine("     %s", wrapList(countCalls(s.EC2.Calls()[calls:]), width-5))
	out.printLine("")
	out.printVerdict("EC2 is as it was before", "only the ENIs of the launch, with one address each", s.onlyBootENIs())
	after, err := s.nodeStates()
	if err != nil {
		return err
	}
	for i, n := range s.Nodes {
		out.printVerdict(n.Name+" is as it was before", "the same links, addresses, routes, rules, tables",
			stateDifference(before[i], after[i]))
	}
	return s.Err()
}

// onlyBootENIs checks that the boot ENIs of the nodes are the only ENIs in EC2.
func (s *scene) onlyBootENIs() error {
	for _, e := range s.EC2.ENIs() {
		if e.Index != 0 || e.Instance == "" || len(e.Addrs)+len(e.Prefixes) > 1 {
			return fmt.Errorf("left: %s of %q, %d addresses", shortID(e.ID), e.Description, len(e.Addrs))
		}
	}
	return nil
}
