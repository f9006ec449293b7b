// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// forNode is the ENI that operators want in these tests.
var forNode = more.ENISpec{SecurityGroups: []string{"sg-1"}, Addrs: 3, MinIndex: 1,
	Tags: map[string]string{"for": "pods"}}

// noLink is a run of new-interface that ends while it waits for the link.
func (w *world) noLink(spec more.ENISpec) (id string) {
	w.Helper()
	p := w.pool()
	p.Policy = lease.Policy{MinIndex: spec.MinIndex}
	id, _, err := p.provisionWith(w.Context(), spec, func(context.Context, string) (string, error) {
		return "", errors.New("interrupted")
	})
	if err == nil || id == "" {
		w.Fatalf("%q, %v", id, err)
	}
	return id
}

// unanswered is a run of new-interface in which all calls of the action have this outcome, so the run ends without an
// answer of EC2.
func (w *world) unanswered(spec more.ENISpec, action string, outcome ec2sim.Outcome) {
	w.Helper()
	w.EC2.Script(action, slices.Repeat([]ec2sim.Outcome{outcome}, 50)...)
	defer w.EC2.Script(action)
	p := w.pool()
	p.Policy = lease.Policy{MinIndex: spec.MinIndex}
	brief, cancel := context.WithTimeout(w.Context(), time.Second)
	defer cancel()
	if _, _, err := p.Provision(brief, spec); err == nil {
		w.Fatal("no error")
	}
}

// notAttached is a run of new-interface that ends before EC2 attaches its ENI.
func (w *world) notAttached(spec more.ENISpec) (id string) {
	w.Helper()
	w.unanswered(spec, "AttachNetworkInterface", ec2sim.UndoneLost)
	all := w.EC2.ENIs()
	return all[len(all)-1].ID
}

// mustProvision runs new-interface.
func (w *world) mustProvision(spec more.ENISpec) (id string) {
	w.Helper()
	p := w.pool()
	p.Policy = lease.Policy{MinIndex: spec.MinIndex}
	id, _, err := p.Provision(w.Context(), spec)
	must(w, err)
	return id
}

// TestProvisionUnseen: new-interface is interrupted, and repeated at once. EC2 does not show its ENI yet. There is one
// ENI.
func TestProvisionUnseen(t *testing.T) {
	for name, interrupted := range map[string]func(*world, *wires) string{
		"attached": func(w *world, wires *wires) string {
			wires.by = "network-interface-id"
			return w.noLink(forNode)
		},
		"created": func(w *world, _ *wires) string { return w.notAttached(forNode) },
	} {
		t.Run(name, func(t *testing.T) {
			inUntaggedBubble(t, "m5.large", func(w *world, wires *wires) {
				made := interrupted(w, wires)
				wires.hidden.Store(made)
				time.AfterFunc(5*time.Second, func() { wires.hidden.Store("") })
				if id := w.mustProvision(forNode); id != made || len(w.EC2.ENIs()) != 2 {
					w.Errorf("has made %s, answers %s, and there are %d ENIs", made, id, len(w.EC2.ENIs()))
				}
				if id := w.mustProvision(forNode); id == made {
					w.Errorf("after an answer, %s again", id)
				}
				w.noneLeaked()
			})
		})
	}
}

// TestProvisionIndex: new-interface does not answer with an ENI at a lower device index than the operator wants.
func TestProvisionIndex(t *testing.T) {
	second := forNode
	second.MinIndex = 2
	inUntaggedBubble(t, "m5.xlarge", func(w *world, _ *wires) {
		first := w.noLink(forNode)
		if id := w.mustProvision(second); id == first || w.ENI(id).Index < 2 {
			w.Errorf("answers %s, at %d", id, w.ENI(id).Index)
		}
		if id := w.mustProvision(forNode); id != first {
			w.Errorf("answers %s, and %s has no answer", id, first)
		}
	})
}

// TestProvisionMarkEnds: new-interface answers with an ENI that an earlier run has begun to attach. A later process
// does not take this ENI for an unfinished one.
func TestProvisionMarkEnds(t *testing.T) {
	inUntaggedBubble(t, "m5.large", func(w *world, wires *wires) {
		made := w.notAttached(forNode)
		all := w.EC2.ENIs()
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", made, "InstanceId", all[0].Instance,
			"DeviceIndex", "1")
		time.Sleep(time.Minute)
		wires.by = "attachment.instance-id" // EC2 hides the ENI, and metadata shows it
		wires.hidden.Store(made)
		if id := w.mustProvision(forNode); id != made {
			w.Errorf("has made %s, answers %s", made, id)
		}
		wires.hidden.Store("")
		time.Sleep(time.Second)
		w.collect()
		if another := w.mustProvision(forNode); another == made {
			w.Errorf("after an answer, %s again", another)
		}
	})
}

// TestProvisionTermination: an earlier run got no answer to its attachment, and metadata shows the ENI now. The ENI
// still ends with the instance.
func TestProvisionTermination(t *testing.T) {
	inUntaggedBubble(t, "m5.large", func(w *world, wires *wires) {
		made := w.notAttached(forNode)
		all := w.EC2.ENIs()
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", made, "InstanceId", all[0].Instance,
			"DeviceIndex", "1")
		time.Sleep(time.Minute)
		must(w, w.pool().Learn(w.Context()))
		wires.by = "attachment.instance-id"
		wires.hidden.Store(made)
		if id := w.mustProvision(forNode); id != made {
			w.Errorf("has made %s, answers %s", made, id)
		}
		wires.hidden.Store("")
		time.Sleep(time.Minute)
		w.collect()
		w.noneLeaked()
	})
}

// TestProvisionOfAnother: a command of the tool does not continue with the ENI of another command, because it does not
// know that command's device index.
func TestProvisionOfAnother(t *testing.T) {
	second := forNode
	second.MinIndex = 2
	other := forNode
	other.SecurityGroups = []string{"sg-2"}
	for name, command := range map[string]func(*world){
		"allocate": func(w *world) {
			p := w.pool()
			p.Policy = lease.Policy{}
			p.Allocate(w.Context(), 1) // no ENI may have room
		},
		"provision": func(w *world) { w.mustProvision(other) },
	} {
		t.Run(name, func(t *testing.T) {
			inUntaggedBubble(t, "m5.xlarge", func(w *world, _ *wires) {
				made := w.notAttached(second)
				command(w)
				if id := w.mustProvision(second); id != made || w.ENI(id).Index < 2 {
					w.Errorf("has made %s, answers %s, at %d", made, id, w.ENI(id).Index)
				}
				w.noneLeaked()
			})
		})
	}
}

// TestProvisionMeanwhile: new-interface is interrupted, and a collection or an ADD comes before new-interface is
// repeated. The repeated command answers with the ENI of its first run.
func TestProvisionMeanwhile(t *testing.T) {
	attached := func(w *world) string {
		made := w.notAttached(forNode)
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", made, "InstanceId", w.ID, "DeviceIndex", "1")
		time.Sleep(time.Minute)
		return made
	}
	for name, interrupted := range map[string]func(*world) string{
		"created":   func(w *world) string { return w.notAttached(forNode) },
		"attached":  attached,
		"no answer": func(w *world) string { return w.noLink(forNode) },
	} {
		for who, comes := range map[string]func(*world){
			"a collection": func(w *world) { w.collect() },
			"an ADD":       func(w *world) { w.mustAcquire(1) },
		} {
			t.Run(name+", "+who, func(t *testing.T) {
				inUntaggedBubble(t, "m5.xlarge", func(w *world, _ *wires) {
					made := interrupted(w)
					comes(w)
					if id := w.mustProvision(forNode); id != made {
						w.Errorf("has made %s, answers %s, and there are %d ENIs", made, id, len(w.EC2.ENIs()))
					}
					if id := w.mustProvision(forNode); id == made {
						w.Errorf("after an answer, %s again", id)
					}
					w.noneLeaked()
				})
			})
		}
	}
}
