// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestUnassignAndGrow: EC2 has unassigned an address, but its answer is late or lost. Meanwhile EC2 gives the same
// address to an ADD. The pod keeps the address.
func TestUnassignAndGrow(t *testing.T) {
	for _, tt := range []struct {
		name string
		idle int
		lost bool
	}{{"late", 2, false}, {"one, lost", 1, true}, {"two, lost", 2, true}} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 28) // of 11 addresses, the pods have a few, and an ENI of others has the rest
			_, err := aws.New(w.cloud).CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-pod0",
				Secondary: 9 - tt.idle})
			must(t, err)
			for n := range 1 + tt.idle {
				w.mustAcquire(n)
			}
			for n := range tt.idle {
				w.end(1 + n)
			}
			w.Age(time.Hour)
			var got lease.Allocation
			var failed error
			var began atomic.Bool
			done := make(chan struct{})
			w.answers(func(rw http.ResponseWriter, r *http.Request) {
				if r.FormValue("Action") != book.UnassignAction || began.Swap(true) {
					w.EC2.ServeHTTP(rw, r)
					return
				}
				answer := httptest.NewRecorder()
				w.EC2.ServeHTTP(answer, r)
				go func() { defer close(done); got, failed = w.acquire(9) }()
				select {
				case <-done:
				case <-time.After(time.Second): // the ADD waits for the collection
				}
				if tt.lost {
					panic(http.ErrAbortHandler)
				}
				rw.WriteHeader(answer.Code)
				rw.Write(answer.Body.Bytes())
			})
			c := less.Collection{FreeAfter: time.Minute, Max: -1}
			if done, err := w.pool().Collect(t.Context(), c); err != nil || len(done.Unassigned) != tt.idle {
				t.Errorf("the collection has unassigned %v, %v", done.Unassigned, err)
			}
			<-done
			must(t, failed)
			a := got.Addrs[0]
			w.consistent()
			var has []netip.Addr
			for _, e := range w.ENIs() {
				has = append(has, e.Addrs...)
			}
			if !slices.Contains(has, a) {
				t.Errorf("a pod was given %v, and the collection has unassigned it; EC2 has %v", a, has)
			}
			if id, _ := w.State().ENIOf(a); id == "" {
				t.Errorf("a pod was given %v, and the registry has it on no ENI: %v", a, w.State().ENIs[got.ID].Addrs)
			}
		})
	}
}

// TestReleaseAgainThrottled: a process was killed before it released a chosen address, and EC2 throttles the calls of
// releases. The process that repeats the release waits for its turn without the lock "grow".
func TestReleaseAgainThrottled(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 3
	w.mustAcquire(0)
	eni := w.EC2.ENIs()[1]
	w.Edit(func(s *registry.State) {
		x := book.Releasable{Addrs: map[netip.Addr]time.Time{eni.Addrs[2]: {}}}
		s.Owners[eni.Addrs[2]] = registry.Pod{Namespace: "db", Name: "db-0"}
		book.NoteRelease(s, eni.ID, x)
		book.Withdraw(s, eni.ID, x)
	})
	must(t, w.pool().NotBefore(t.Context(), book.UnassignAction, 3*time.Second))
	done := make(chan error)
	p := w.pool()
	go func() { _, err := p.ReleaseChosen(t.Context()); done <- err }()
	time.Sleep(300 * time.Millisecond)
	waiting, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if unlock, err := w.Registry().Lock(waiting, "grow"); err != nil {
		t.Errorf("a growth waits for the release: %v", err)
	} else {
		unlock()
	}
	must(t, <-done)
	if left := w.ENI(eni.ID).Addrs; len(left) != len(eni.Addrs)-1 || len(w.State().Intents) > 0 {
		t.Errorf("the ENI has %v; intents %v", left, w.State().Intents)
	}
}

// TestCollectChosen: Max also limits how many chosen addresses a collection unassigns.
func TestCollectChosen(t *testing.T) {
	for most, want := range map[int]int{0: 0, 1: 1, 2: 2, -1: 3} {
		w := newWorld(t, "m5.large", 20)
		w.policy.Batch = 5
		w.mustAcquire(0)
		eni := w.EC2.ENIs()[1]
		w.Edit(func(s *registry.State) {
			for _, a := range eni.Addrs[2:] {
				s.Owners[a] = registry.Pod{Namespace: "db", Name: a.String()}
			}
		})
		done := must1(w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Hour, Max: most}))(t)
		if len(done.Unassigned) != want || len(w.ENI(eni.ID).Addrs) != len(eni.Addrs)-want {
			t.Errorf("at most %d: unassigned %v; EC2 has %v", most, done.Unassigned, w.ENI(eni.ID).Addrs)
		}
	}
}

// TestUnassignIncident: while EC2 does not answer, no process knows which addresses an ENI has lost, so pods cannot
// have them. A collection tries to unassign addresses of only one ENI, so the other ENIs keep their addresses for new
// pods. The same holds for chosen addresses. If the answer to a call is lost, the addresses of this call count towards
// the limit of the collection.
func TestUnassignIncident(t *testing.T) {
	for _, tt := range []struct {
		chosen    []int // of these ENIs, the free addresses were chosen by pods
		most, out int   // the limit, and how many addresses may leave the registry
	}{{nil, -1, 13}, {[]int{1, 2}, -1, 13}, {[]int{1}, -1, 13}, {[]int{1, 2}, 1, 1}, {[]int{1}, 1, 1}} {
		t.Run(fmt.Sprint(tt.chosen, tt.most), func(t *testing.T) {
			w := newWorld(t, "m5.xlarge", 20)
			w.policy.Batch = 14
			for n := range 1 + 2*14 {
				w.mustAcquire(n)
			}
			for n := range 1 + 2*14 {
				if n%14 > 0 { // each of the ENIs has a pod still
					w.end(n)
				}
			}
			w.Age(time.Hour)
			w.Edit(func(s *registry.State) {
				for _, n := range tt.chosen {
					for _, a := range w.EC2.ENIs()[n].Addrs {
						if s.Free.Has(a) {
							s.Owners[a] = registry.Pod{Namespace: "db", Name: a.String()}
						}
					}
				}
			})
			before := w.State().Free.Len()
			w.EC2.Script("DescribeNetworkInterfaces", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
			w.EC2.Script(book.UnassignAction, slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
			w.EC2.ResetCalls()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			c := less.Collection{FreeAfter: time.Minute, Max: tt.most}
			if _, err := w.pool().Collect(ctx, c); err == nil {
				t.Error("no error")
			}
			asked := map[string]bool{}
			for _, c := range w.EC2.Calls() {
				if c.Action == book.UnassignAction {
					asked[c.Params["NetworkInterfaceId"]] = true
				}
			}
			if out := before - w.State().Free.Len(); len(asked) != 1 || out < 1 || out > tt.out {
				t.Errorf("EC2 was asked about %d ENIs; of %d free addresses, %d have left the registry", len(asked),
					before, out)
			}
		})
	}
}
