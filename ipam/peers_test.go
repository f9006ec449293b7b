// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
)

const askPeers = "DescribeVpcPeeringConnections"

// peered calls f with a node whose pods get routes to the VPC's peers. One pod has an address, and more are free.
func peered(t *testing.T, f func(*world)) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.Peers, w.policy.Batch = true, 4
		w.mustAcquire(0)
		if n := w.EC2.Asked(askPeers); n != 1 {
			w.Errorf("the first growth has asked for the peers %d times", n)
		}
		w.EC2.ResetCalls()
		f(w)
	})
}

// wantAsked checks how often EC2 was asked for the peers since the last call of wantAsked.
func (w *world) wantAsked(who string, want int) {
	w.Helper()
	if n := w.EC2.Asked(askPeers); n != want {
		w.Errorf("%s has asked for the peers %d times, want %d", who, n, want)
	}
	w.EC2.ResetCalls()
}

// collects runs a collection with this policy. An empty policy stands for a run without a configuration.
func (w *world) collects(policy lease.Policy) {
	w.Helper()
	p := w.pool()
	p.Policy = policy
	must1(p.Collect(w.Context(), less.Collection{FreeAfter: hour, Max: 0}))(w)
}

// TestPeersRenewed: collections and growths ask for the peers once an hour. An ADD that finds an address does not ask.
func TestPeersRenewed(t *testing.T) {
	peered(t, func(w *world) {
		time.Sleep(2 * time.Hour)
		w.mustAcquire(1)
		w.wantAsked("an ADD that finds an address", 0)
		w.collects(lease.Policy{})
		w.wantAsked("a collection without a configuration", 1)
		w.collects(w.policy)
		w.wantAsked("the next collection", 0)
		time.Sleep(2 * time.Hour)
		w.collects(lease.Policy{Provision: lease.ProvisionFull})
		w.wantAsked("a collection whose pods get no such routes", 0)
		w.collects(w.policy)
		w.wantAsked("a collection with the configuration", 1)
		time.Sleep(2 * time.Hour)
		w.mustAcquire(2)
		w.wantAsked("an ADD that finds an address", 0)
		for n := range 8 {
			w.mustAcquire(3 + n)
		}
		if n := w.EC2.Asked("AssignPrivateIpAddresses"); n == 0 {
			w.Error("there was no growth")
		}
		w.wantAsked("a growth", 1)
	})
}

// TestPeersThrottled: pods get routes to the peers of an old answer. No ADD and no collection waits long for a new
// answer.
func TestPeersThrottled(t *testing.T) {
	peered(t, func(w *world) {
		time.Sleep(2 * time.Hour)
		read := w.State().VPCs["vpc-1"].PeersRead
		w.EC2.Fail(askPeers, throttling, -1)
		for i, f := range []func(){func() {
			w.collects(w.policy)
		}, func() { w.policy.Batch = 8; w.mustAcquire(1); w.mustAcquire(2); w.mustAcquire(3); w.mustAcquire(4) }} {
			began := time.Now()
			f()
			if took := time.Since(began); took > 3*time.Second {
				w.Errorf("%d: EC2 throttles, and that takes %v", i, took)
			}
		}
		if now := w.State().VPCs["vpc-1"].PeersRead; !now.Equal(read) {
			w.Errorf("read at %v, want %v", now, read)
		}
	})
}

// TestPeersUnknown: without a list of peers, an ADD waits for one, although an address is free. If EC2 refuses, all
// ADDs fail at once with this refusal.
func TestPeersUnknown(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.Batch = 4
		w.mustAcquire(0)
		w.policy.Peers = true
		w.EC2.ResetCalls()
		w.EC2.Fail(askPeers, "UnauthorizedOperation", -1)
		a, err := w.acquire(1)
		e, ok := errors.AsType[*plugin.Error](err)
		if !ok || e.Code != plugin.CodeTryAgain || e.Hint != "allow ec2:"+askPeers+" in the instance role" ||
			!strings.HasPrefix(err.Error(),
				"the peers of the VPC are not known yet: unable to enumerate peer CIDRs: ") || !a.Fresh {
			w.Errorf("the ADD fails with %v (%+v), fresh %v", err, e, a.Fresh)
		}
		if s := w.State(); len(s.Waiters) != 0 || s.Leases.Len() != 1 {
			w.Errorf("waiters %v, %d leases", s.Waiters, s.Leases.Len())
		}
		if calls := w.EC2.Calls(); len(calls) != 1 {
			w.Errorf("calls %v", calls)
		}
		w.EC2.Fail(askPeers, throttling, 3)
		w.mustAcquire(1)
		w.mustAcquire(0) // this pod already has an address
		w.EC2.ResetCalls()
		w.mustAcquire(2)
		w.wantAsked("the next ADD", 0)
	})
}

// TestPeersLost: after a loss of the registry, a collection or a Fill asks for the peers before an ADD needs them.
func TestPeersLost(t *testing.T) {
	for name, f := range map[string]func(*world){
		"collect": func(w *world) { w.collects(w.policy) },
		"fill": func(w *world) {
			_, err := w.pool().Fill(w.Context())
			must(w, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			peered(t, func(w *world) {
				must(w, os.RemoveAll(w.Dir))
				f(w)
				w.wantAsked("it", 1)
				time.Sleep(2 * time.Hour)
				must1(w.pool().Collect(context.Background(), less.Collection{FreeAfter: 10 * hour, Max: 0}))(w)
				w.wantAsked("a collection", 1)
				w.mustAcquire(1)
				w.wantAsked("an ADD", 0)
			})
		})
	}
}

// TestLostInAttachment: the registry is lost while EC2 attaches a new ENI. The growth then records the ENI in an empty
// registry, with free addresses. The result of the growth's ADD has all routes and the DNS server. A repeated ADD has
// the same result.
func TestLostInAttachment(t *testing.T) {
	for _, peers := range []bool{false, true} {
		t.Run(fmt.Sprint("peers ", peers), func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Peers = peers
				ctx, cancel := context.WithTimeout(w.Context(), w.policy.Timeout)
				defer cancel()
				lose := func() { must(w, os.RemoveAll(w.Dir)) }
				first, err := w.at(nil, lose, "Action=AttachNetworkInterface").Acquire(ctx, pod(1))
				must(w, err)
				must(w, w.pool().Learn(w.Context()))
				again, err := w.acquire(1)
				must(w, err)
				a, b := first.Result("eth1", w.policy), again.Result("eth1", w.policy)
				if !reflect.DeepEqual(a, b) || len(a.Routes) == 0 || len(a.DNS.Nameservers) == 0 {
					w.Errorf("the pod gets\n%+v\nand later\n%+v", a, b)
				}
				w.consistent()
			})
		})
	}
}
