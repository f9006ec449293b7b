// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// wantsTags checks that a pod gets no address, and that the error names the permission for tags. The next pod gets the
// same error without a call to EC2.
func (w *world) wantsTags() {
	w.Helper()
	for n := range 2 {
		if n == 1 {
			w.EC2.ResetCalls()
		}
		if a, err := w.acquire(n); err == nil || !strings.Contains(Hint(err), "ec2:CreateTags") {
			w.Errorf("pod %d has %v; error %v, hint %q", n, a.Addrs, err, Hint(err))
		}
	}
	if calls := w.EC2.Asked(book.CreateAction); calls > 0 {
		w.Errorf("the second pod made %d calls %s", calls, book.CreateAction)
	}
	if enis := w.EC2.ENIs(); len(enis) != 1 {
		w.Errorf("there are %d ENIs, want the boot ENI alone: %+v", len(enis), enis)
	}
}

// TestPoolsNeedTags: only a tag names the pool of an ENI. If the role may not create tags, a node with several pools
// creates no ENI.
func TestPoolsNeedTags(t *testing.T) {
	noTags := func(c *ec2sim.Config) { c.Denied = []string{"CreateTags"} }
	for _, pool := range []string{"", "payments"} {
		t.Run(pool, func(t *testing.T) {
			inBubbleOf(t, "m5.large", noTags, func(w *world, _ *wires) {
				w.policy.Pools, w.policy.Pool = true, pool
				w.wantsTags()
			})
		})
	}
}

// TestOnlyWithTags: the role may create ENIs only with tags, and may not create tags. EC2 also refuses an ENI without
// tags, for another reason. The error names the permission that the role lacks.
func TestOnlyWithTags(t *testing.T) {
	noTags := func(c *ec2sim.Config) { c.Denied = []string{"CreateTags"} }
	inBubbleOf(t, "m5.large", noTags, func(w *world, _ *wires) {
		w.EC2.Script(book.CreateAction, ec2sim.Answered, denied)
		w.wantsTags()
	})
}

// TestPoolUnknown: an ENI has the description of this suite, and no tag names its pool. If the node has several pools,
// pods of the default pool use the ENI only if it fits this pool.
func TestPoolUnknown(t *testing.T) {
	for _, pools := range []bool{false, true} {
		for group, fits := range map[string]bool{"sg-1": true, "sg-77": !pools} {
			t.Run(group, func(t *testing.T) {
				spec := aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{group}}
				policy := func(w *world) {
					spec.Description = book.Description(w.ID)
					w.policy.Pools, w.policy.SecurityGroups = pools, []string{"sg-1"}
				}
				t.Run("attached", func(t *testing.T) {
					w := newWorld(t, "m5.large", 20)
					policy(w)
					if eni := w.attachOther(spec); w.uses(eni, 1) != fits {
						t.Errorf("pods use it: want %v", fits)
					}
				})
				t.Run("not attached", func(t *testing.T) {
					inBubble(t, "m5.large", func(w *world, _ *wires) {
						policy(w)
						eni, err := w.byHand().CreateENI(w.Context(), spec)
						must(w, err)
						must(w, w.pool().Learn(w.Context()))
						must(w, w.pool().Registry.Change(w.Context(), func(s *registry.State) {
							s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: eni.ID,
								Since: time.Now()}
						}))
						time.Sleep(time.Minute)
						if w.uses(eni.ID, 1) != fits {
							w.Errorf("pods use it: want %v", fits)
						}
					})
				})
			})
		}
	}
}

// TestPoolUnknownLater: the registry was lost, and a collection without configuration is the first process to find the
// ENI of another pool. Pods of the default pool do not use this ENI.
func TestPoolUnknownLater(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	eni := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", SecurityGroups: []string{"sg-77"},
		Description: book.Description(w.ID)})
	several := w.policy
	several.Pools, several.SecurityGroups = true, []string{"sg-1"}
	w.policy = lease.Policy{}
	must(t, w.pool().Learn(t.Context()))
	w.policy = several
	if w.uses(eni, 1) {
		t.Error("pods of the default pool use it")
	}
}
