// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// callsAt carries requests to EC2. The first request that contains all words is special: the functions in the fields
// before and after run just before and just after this request.
type callsAt struct {
	aws.HTTPClient
	words         []string
	before, after func()
	once          sync.Once
}

func (c *callsAt) Do(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	first := false
	if !slices.ContainsFunc(c.words, func(word string) bool { return !bytes.Contains(body, []byte(word)) }) {
		c.once.Do(func() { first = true })
	}
	if first && c.before != nil {
		c.before()
	}
	answer, err := c.HTTPClient.Do(r)
	if first && c.after != nil {
		c.after()
	}
	return answer, err
}

// at returns the pool of a process whose requests to EC2 go through a callsAt with these functions and words.
func (w *world) at(before, after func(), words ...string) *Pool {
	p, options := w.pool(), w.cloud
	options.HTTP = &callsAt{HTTPClient: w.cloud.HTTP, words: words, before: before, after: after}
	p.Cloud = aws.New(options)
	return p
}

// stray creates an ENI and its intent, like a growth that is killed between the creation and the attachment of the ENI.
// It returns the ID of the ENI.
func (w *world) stray() (id string) {
	w.Helper()
	p := w.pool()
	e, err := p.Cloud.CreateENI(w.Context(), aws.ENISpec{
		Subnet: "subnet-pod0", Secondary: 9, Description: book.Description(w.ID), Tags: map[string]string{
			book.TagManaged: "true", book.TagInstance: w.ID, book.TagPool: lease.DefaultPool,
			book.TagKeep: "false",
		},
	})
	must(w, err)
	must(w, p.Registry.Change(w.Context(), func(s *registry.State) {
		s.Intents[e.ID] = registry.Intent{Action: book.AttachAction, ENI: e.ID, Since: time.Now()}
	}))
	return e.ID
}

const detachWord = "Action=DetachNetworkInterface&"

// newDraining returns an ENI without pods, which the next collection will detach. If asked is true, it is an ENI on
// request, and otherwise an ENI that the node has created. The function add runs an ADD that may use the ENI.
func (w *world) newDraining(asked bool) (eni string, add func(n int) (string, error)) {
	w.Helper()
	ask := ""
	if asked {
		eni = w.given(aws.ENISpec{Subnet: "subnet-node", Secondary: 5}).ID
		ask = fmt.Sprintf(`[{"eni": %q}]`, eni)
	}
	add = func(n int) (string, error) {
		if !asked {
			a, err := w.acquire(n)
			return a.ID, err
		}
		all, err := w.ask(n, allowAll, ask)
		if err != nil {
			return "", err
		}
		return all[0].ID, nil
	}
	id, err := add(1)
	must(w, err)
	w.end(1)
	time.Sleep(time.Hour)
	return id, add
}

// leaves checks that EC2 is detaching the ENI, and that no pod gets an address of it.
func (w *world) leaves(eni string, add func(n int) (string, error)) {
	w.Helper()
	if e := w.ENI(eni); e.AttachmentStatus != "detaching" {
		w.Fatalf("EC2 does not detach the ENI: %+v", e)
	}
	for n := range 3 {
		if id, err := add(100 + n); id == eni {
			w.Errorf("a pod has got an address of an ENI that EC2 detaches: %v", err)
		}
	}
}

// inDrainingBubbles calls f twice: for an ENI that the node has created, and for an ENI on request (asked). EC2 takes
// 24 hours to detach an ENI.
func inDrainingBubbles(t *testing.T, f func(w *world, asked bool)) {
	for name, asked := range map[string]bool{"ours": false, "on request": true} {
		t.Run(name, func(t *testing.T) {
			inSlowBubble(t, "m5.2xlarge", 24*time.Hour, func(w *world, _ *wires) { f(w, asked) })
		})
	}
}

// TestDrainKilledGrowth: a collection has marked an ENI as draining. Before the collection can detach the ENI, a growth
// that needs the slot detaches the ENI, and is killed. Then EC2 throttles the collection. No pod gets an address of the
// ENI.
func TestDrainKilledGrowth(t *testing.T) {
	inSlowBubble(t, "m5.2xlarge", 24*time.Hour, func(w *world, _ *wires) {
		eni, add := w.newDraining(false)
		p := w.at(func() {
			ctx, kill := context.WithCancel(w.Context())
			growth := w.at(nil, kill, detachWord)
			s, err := growth.Registry.View()
			must(w, err)
			if _, err := growth.DeleteDraining(ctx, s); err == nil {
				w.Error("the growth was not killed")
			}
			w.EC2.Fail("DetachNetworkInterface", throttling, always)
		}, nil, detachWord)
		if _, err := p.Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
			w.Error("EC2 has throttled the collection, and it says nothing")
		}
		w.leaves(eni, add)
	})
}

// TestDrainLostAnswer: EC2 has begun to detach an ENI, but the answer was lost, and EC2 throttles all further calls. No
// pod gets an address of the ENI.
func TestDrainLostAnswer(t *testing.T) {
	inDrainingBubbles(t, func(w *world, asked bool) {
		eni, add := w.newDraining(asked)
		w.EC2.Script("DetachNetworkInterface", slices.Concat([]ec2sim.Outcome{ec2sim.DoneLost},
			slices.Repeat([]ec2sim.Outcome{ec2sim.Refused(throttling)}, 50))...)
		if _, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
			w.Error("EC2 has throttled the collection, and it says nothing")
		}
		w.EC2.Script("DetachNetworkInterface")
		w.leaves(eni, add)
	})
}

// TestDrainKilledCollection: EC2 has begun to detach an ENI for a collection that was killed. The next collection
// cannot read all namespaces, or has no permission to detach the ENI. No pod gets an address of the ENI.
func TestDrainKilledCollection(t *testing.T) {
	for name, hinder := range map[string]func(*world, *Pool){
		"a namespace cannot be read": func(w *world, p *Pool) {
			p.Shelves = []lease.Shelf{{Dir: filepath.Join(w.Dir, "registry.json")}}
		},
		"the role may not detach": func(w *world, _ *Pool) {
			w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", always)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inDrainingBubbles(t, func(w *world, asked bool) {
				eni, add := w.newDraining(asked)
				ctx, kill := context.WithCancel(w.Context())
				if _, err := w.at(nil, kill, detachWord).Collect(ctx,
					less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
					w.Error("the collection was not killed")
				}
				p := w.pool()
				hinder(w, p)
				// The collection may fail, or leave the ENI alone.
				p.Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
				w.leaves(eni, add)
			})
		})
	}
}

// TestDrainNotBegun: a collection has asked EC2 to detach an ENI, and all answers are lost. EC2 has not begun the
// detachment, but no process knows this. Then the role loses the permission to detach. After an hour, a collection
// makes the ENI serve pods again.
func TestDrainNotBegun(t *testing.T) {
	inDrainingBubbles(t, func(w *world, asked bool) {
		eni, add := w.newDraining(asked)
		w.EC2.Script("DetachNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
		if _, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
			w.Error("it is not known whether EC2 detaches the ENI, and the collection does not say so")
		}
		w.EC2.Script("DetachNetworkInterface")
		w.EC2.Fail("DetachNetworkInterface", "UnauthorizedOperation", always)
		if id, err := add(2); id == eni {
			w.Errorf("a pod has got an address of an ENI that EC2 may detach: %v", err)
		}
		time.Sleep(time.Hour)
		w.pool().Collect(w.Context(), less.Collection{FreeAfter: 24 * time.Hour, Max: -1})
		if w.State().ENIs[eni].Draining {
			w.Errorf("the ENI serves no pods: %+v", w.State().ENIs[eni])
		}
	})
}

// TestDrainLost: while EC2 detaches an ENI, the registry is lost, and with it the mark of the ENI. EC2 still shows the
// detachment, so the ENI serves no pods. This is also true when a growth or a collection compares the registry with
// EC2.
func TestDrainLost(t *testing.T) {
	for name, pair := range map[string]bool{"no pod runs": false, "a pod runs": true} {
		t.Run(name, func(t *testing.T) {
			inDrainingBubbles(t, func(w *world, asked bool) {
				eni, add := w.newDraining(asked)
				if pair {
					must(w, nl.Wiring{{NS: w.Host, Object: nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host,
						Group: nl.OwnGroup}}}.Add())
				}
				ctx, kill := context.WithCancel(w.Context())
				if _, err := w.at(nil, kill, detachWord).Collect(ctx,
					less.Collection{FreeAfter: time.Minute, Max: -1}); err == nil {
					w.Error("the collection was not killed")
				}
				w.Lose()
				w.leaves(eni, add)
				time.Sleep(time.Hour)
				// The collection may fail, because EC2 has not finished the detachment.
				w.pool().Collect(w.Context(), less.Collection{FreeAfter: 24 * time.Hour, Max: -1})
				w.leaves(eni, add)
				time.Sleep(24 * time.Hour)
				w.collect()
				if w.consistent(); !asked && slices.ContainsFunc(w.EC2.ENIs(),
					func(e ec2sim.ENI) bool { return e.ID == eni }) {
					w.Error("the ENI is left behind")
				}
				if _, err := add(4); err != nil {
					w.Errorf("when the ENI is detached: %v", err)
				}
			})
		})
	}
}

// TestDrainNoMore: a growth needs a slot, and is about to detach the draining ENI at this slot. Meanwhile EC2 throttles
// the collection that has marked the ENI, and this collection removes the mark. Then pods get addresses of the ENI, and
// no process detaches it.
func TestDrainNoMore(t *testing.T) {
	inBubble(t, "m5.2xlarge", func(w *world, _ *wires) {
		eni, add := w.newDraining(false)
		w.Edit(func(s *registry.State) { s.Edit(eni, (*registry.ENI).Drain) })
		undrain := func() {
			w.Edit(func(s *registry.State) {
				if s.ENIs[eni].Detaching.IsZero() {
					s.Edit(eni, (*registry.ENI).Undrain)
				}
			})
		}
		growth := w.at(nil, undrain, "Action=DescribeNetworkInterfaces&", eni)
		s, err := growth.Registry.View()
		must(w, err)
		if _, err := growth.DeleteDraining(w.Context(), s); err != nil {
			w.Errorf("the growth fails: %v", err)
		}
		if id, err := add(2); id != eni {
			w.Errorf("the pod has an address of %q: %v", id, err)
		}
		w.consistent()
	})
}
