// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestTerminationLater: EC2's answer to an attachment is lost. A collection finds the attached ENI, but EC2 refuses to
// set DeleteOnTermination. A later collection tries again.
func TestTerminationLater(t *testing.T) {
	for _, refusal := range []string{"UnsupportedOperation", "UnauthorizedOperation", "InternalError"} {
		t.Run(refusal, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(0)
				eni := w.EC2.ENIs()[1]
				w.Operate("ModifyNetworkInterfaceAttribute", "NetworkInterfaceId", eni.ID,
					"Attachment.AttachmentId", eni.Attachment, "Attachment.DeleteOnTermination", "false")
				w.Edit(func(s *registry.State) {
					s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: eni.ID, Since: time.Now()}
				})
				time.Sleep(time.Minute)
				w.EC2.ResetCalls()
				w.EC2.Fail("ModifyNetworkInterfaceAttribute", refusal, -1)
				w.collect()
				if w.EC2.Asked("ModifyNetworkInterfaceAttribute") == 0 {
					t.Fatal("no process has tried")
				}
				w.EC2.Fail("ModifyNetworkInterfaceAttribute", refusal, 0)
				time.Sleep(registry.MostRefusal) // for so long, the node does not ask again
				// the first collection may only ask EC2 about the ENI, and the second then sets the attribute
				for range 2 {
					time.Sleep(time.Minute)
					w.collect()
				}
				w.noneLeaked()
			})
		})
	}
}

// TestTerminationNewInterface: when new-interface has attached an ENI, EC2 refuses the first attempts to set
// DeleteOnTermination. The same run tries again, and sets the attribute, also on a node that must not create ENIs.
func TestTerminationNewInterface(t *testing.T) {
	for _, code := range []string{throttling, "InternalError"} {
		for _, provision := range []lease.Provision{lease.ProvisionAssign, lease.ProvisionNone} {
			t.Run(code+" "+string(provision), func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.policy.Provision = provision
					w.EC2.Fail(book.ModifyAction, code, 4)
					p := w.pool()
					p.Policy = lease.Policy{}
					id, _, err := p.provisionWith(w.Context(), more.ENISpec{SecurityGroups: []string{"sg-1"},
						Tags: map[string]string{"for": "pods"}, MinIndex: 1, Addrs: 3},
						func(context.Context, string) (string, error) { return "eth1", nil })
					must(w, err)
					if !w.ENI(id).DeleteOnTermination || w.EC2.Asked(book.ModifyAction) < 2 {
						w.Errorf("the ENI outlives the instance, after %d calls", w.EC2.Asked(book.ModifyAction))
					}
					if left := w.State().Intents; len(left) > 0 {
						w.Errorf("intents %v", left)
					}
				})
			})
		}
	}
}

// TestTerminationMixed: one network of the node may create ENIs, and another may not. EC2 throttles the growth that
// has attached an ENI. A collection sets DeleteOnTermination.
func TestTerminationMixed(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		other := w.policy
		other.Provision = lease.ProvisionAssign
		w.EC2.Fail(book.ModifyAction, throttling, always)
		w.mustAcquire(1)
		w.EC2.Fail(book.ModifyAction, "", 0)
		time.Sleep(time.Minute)
		w.policy = lease.Common(w.policy, other)
		w.collect()
		if !w.ENIs()[1].DeleteOnTermination {
			w.Errorf("the ENI outlives the instance; intents %v", w.State().Intents)
		}
	})
}

// TestTerminationTwoIntents: new-interface gets no answer to its attachment, EC2's descriptions lag, and EC2 throttles
// the repeated command. The ENI then has two intents. A process reads intents in a random order, so the test plays this
// eight times.
func TestTerminationTwoIntents(t *testing.T) {
	for range 8 {
		inBubble(t, "m5.large", func(w *world, wires *wires) {
			w.policy.Provision = lease.ProvisionAssign
			w.unanswered(forNode, "AttachNetworkInterface", ec2sim.DoneLost)
			all := w.EC2.ENIs()
			made := all[len(all)-1].ID
			wires.hidden.Store(made)
			time.AfterFunc(5*time.Second, func() { wires.hidden.Store("") })
			w.EC2.Fail(book.ModifyAction, throttling, 2)
			p := w.pool()
			p.Policy = lease.Policy{MinIndex: 1}
			id, _, err := p.provisionWith(w.Context(), forNode,
				func(context.Context, string) (string, error) { return "eth1", nil })
			must(w, err)
			if id != made || !w.ENI(id).DeleteOnTermination {
				w.Errorf("new-interface made %s, and then %s, which outlives the instance", made, id)
			}
		})
	}
}
