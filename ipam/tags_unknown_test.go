// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestTagsUnknown: EC2 does not answer when the node learns an ENI whose tags forbid changes. No pod gets an address of
// this ENI, then or later, and the ENI loses no address, even if an operator's command names the address.
func TestTagsUnknown(t *testing.T) {
	const action = "DescribeNetworkInterfaces"
	for name, fail := range map[string]func(*world){
		"a problem of EC2's":     func(w *world) { w.EC2.Fail(action, "InternalError", always) },
		"a clock that is wrong":  func(w *world) { w.EC2.Fail(action, "RequestExpired", always) },
		"EC2 throttles":          func(w *world) { w.EC2.Fail(action, throttling, always) },
		"the answer is nonsense": func(w *world) { w.EC2.Fail(action, "TagPolicyViolation", always) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Timeout = 10 * time.Second
				guest := w.attachForeign(map[string]string{book.TagNoManage: "true"})
				fail(w)
				if a, err := w.acquire(1); err == nil {
					w.Errorf("a pod has %v of %s", a.Addrs, a.ID)
				}
				must(w, w.pool().Learn(w.Context()))
				if why := w.policy.Misfit(w.State().ENIs[guest]); why == "" {
					w.Error("nothing says why it serves no pods")
				}
				w.keepsNamed(guest)
				w.EC2.Fail(action, "InternalError", 0)
				time.Sleep(time.Minute)
				if a, err := w.acquire(2); err != nil || a.ID == guest {
					w.Errorf("a pod has %v of %s: %v", a.Addrs, a.ID, err)
				}
				w.keepsNamed(guest)
				w.keeps(guest)
			})
		})
	}
}

// keepsNamed checks that an operator's command does not unassign an address of the ENI.
func (w *world) keepsNamed(eni string) {
	w.Helper()
	if gone, err := w.pool().Deallocate(w.Context(), w.ENI(eni).Addrs[1]); err == nil {
		w.Errorf("an operator's command has unassigned %v", gone)
	}
}

// keeps checks that collections leave all addresses of the ENI where they are.
func (w *world) keeps(eni string) {
	w.Helper()
	had := len(w.ENI(eni).Addrs)
	for range 3 {
		time.Sleep(2 * time.Hour)
		w.collect()
	}
	if e := w.ENI(eni); len(e.Addrs) != had || e.Instance != w.ID {
		w.Errorf("it had %d addresses, and now it is %+v", had, e)
	}
}

// TestTagsUnknownCancelled: a call to EC2 is canceled. So the node still does not know whether the role may make this
// call.
func TestTagsUnknownCancelled(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		guest := w.attachForeign(map[string]string{book.TagNoManage: "true"})
		must(w, w.pool().NotBefore(w.Context(), "DescribeNetworkInterfaces", 4*time.Second))
		ctx, cancel := context.WithCancel(w.Context())
		time.AfterFunc(time.Second, cancel)
		if err := w.pool().Learn(ctx); err == nil {
			w.Error("EC2 has not said whose the ENI is, and all is learnt")
		}
		time.Sleep(time.Minute)
		if a, err := w.acquire(1); err != nil || a.ID == guest {
			w.Errorf("a pod has %v of %s: %v", a.Addrs, a.ID, err)
		}
		w.keeps(guest)
	})
}

// TestTagsUnknownNotAllowed: the role may not ask for tags. The ENI serves pods, as with the original plugin, but the
// node releases none of its addresses. With several pools, the ENI serves no pods.
func TestTagsUnknownNotAllowed(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		other := w.attachForeign(nil)
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", always)
		w.mustAcquire(1)
		if l := w.State().Held(pod(1).Key); len(l) != 1 || !w.State().ENIs[other].Has(l[0]) {
			w.Errorf("the pod has %v", l)
		}
		if e := w.State().ENIs[other]; e.TagsUnknown != registry.NotAllowed {
			w.Errorf("%+v", e)
		}
		w.end(1)
		w.keeps(other)
		pools := w.policy
		pools.Pools = true
		if places := lease.Places(w.State(), pools, time.Now()); len(places) != 0 {
			w.Errorf("pools are to be told apart, and pods get addresses of %+v", places)
		}

		// An operator corrects the role, and the node learns the tags.
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", 0)
		must(w, w.pool().Learn(w.Context()))
		if e := w.State().ENIs[other]; e.TagsUnknown != "" {
			w.Errorf("EC2 has told, and the registry says %+v", e)
		}
	})
}

// TestLostAnswerNotAllowed: the role may assign addresses, but not describe ENIs, and the answer to a call is lost. The
// node cannot find out what EC2 has done, so pods wait as long as EC2 may lag. Collections continue.
func TestLostAnswerNotAllowed(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		other := w.attachForeign(nil)
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", always)
		w.EC2.Script("AssignPrivateIpAddresses", ec2sim.DoneLost, ec2sim.DoneLost, ec2sim.DoneLost)
		n := 0
		for _, err := w.acquire(n); err == nil; _, err = w.acquire(n) {
			n++
		}
		if s := w.State(); len(s.Intents) != 1 {
			w.Fatalf("%d pods, and then %v", n, s.Intents)
		}
		w.EC2.Script("AssignPrivateIpAddresses")
		time.Sleep(20 * time.Minute)
		w.mustAcquire(n)
		if s := w.State(); len(s.Intents) != 0 || !s.ENIs[other].Has(s.Held(pod(n).Key)[0]) {
			w.Errorf("intents %v; the pod has %v", s.Intents, s.Held(pod(n).Key))
		}
		must1(w.pool().Collect(w.Context(), less.Collection{Max: -1}))(w)
		w.mustAcquire(n + 1)
		w.consistent()
	})
}

// TestTagsUnknownPools: with "provision": "none" and several pools, the role may not ask for tags, until an operator
// corrects the role. The ENI serves its pool from the next collection on.
func TestTagsUnknownPools(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		var c lease.Config
		must(w, json.Unmarshal(
			[]byte(`{"interfaceIndex": 1, "provision": "none", "pools": {"db": {"namespaces": ["db"]}}}`), &c))
		must(w, c.Validate())
		w.attachForeign(nil)
		w.EC2.Fail("DescribeNetworkInterfaces", "UnauthorizedOperation", always)
		w.policy = lease.Common(c.Policies()[0])
		w.collect()
		w.policy = c.Policies()[0]
		if _, err := w.acquire(1); !aws.NotAllowed(err) {
			w.Errorf("a pod came before the role was corrected: %v", err)
		}
		w.EC2.Fail("DescribeNetworkInterfaces", "", 0)
		w.policy = lease.Common(c.Policies()[0])
		w.collect()
		w.policy = c.Policies()[0]
		w.mustAcquire(2)
	})
}

// TestTagsUnknownLater: the node learns an ENI without its tags, after all intents have ended. The next growth asks for
// the tags.
func TestTagsUnknownLater(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.mustAcquire(1)
		time.Sleep(time.Minute)
		w.collect()
		other := w.attachAt(2)
		w.EC2.Fail("DescribeNetworkInterfaces", "RequestExpired", always)
		must(w, w.pool().Learn(w.Context()))
		if r := w.State().Rebuilt; r != (registry.Rebuilt{}) || w.State().ENIs[other].TagsUnknown != registry.NotAsked {
			w.Fatalf("%+v, %+v", r, w.State().ENIs[other])
		}
		w.EC2.Fail("DescribeNetworkInterfaces", "RequestExpired", 0)
		time.Sleep(time.Hour)
		w.mustAcquire(2)
		if e := w.State().ENIs[other]; e.TagsUnknown != "" {
			w.Errorf("%+v", e)
		}
	})
}

// attachAt attaches an ENI at a device index, as an operator or another program does. The ENI is like the ENIs that the
// node creates for pods.
func (w *world) attachAt(index int) string {
	w.Helper()
	w.Operate("CreateNetworkInterface", "SubnetId", "subnet-pod0")
	all := w.EC2.ENIs()
	id := all[len(all)-1].ID
	w.Operate("AttachNetworkInterface", "NetworkInterfaceId", id, "InstanceId", w.ID, "DeviceIndex",
		fmt.Sprint(index))
	return id
}

// TestLookAfterRefusal: the registry is lost while EC2 refuses to describe anything. The refusal does not count as a
// comparison with EC2. So the node deletes an ENI of ours that metadata hides and an operator detaches.
func TestLookAfterRefusal(t *testing.T) {
	for _, code := range []string{"UnauthorizedOperation", "TagPolicyViolation"} {
		t.Run(code, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(1)
				ours := w.EC2.ENIs()[1]
				w.Lose()
				stop := w.Lie(ec2sim.ForgetENI(ours.ID))
				w.EC2.Fail("DescribeNetworkInterfaces", code, always)
				must(w, w.pool().Learn(w.Context()))
				c := less.Collection{Max: -1}
				if _, err := w.pool().Collect(w.Context(), c); err != nil && code == "UnauthorizedOperation" {
					w.Error(err)
				}
				w.Operate("DetachNetworkInterface", "AttachmentId", w.ENI(ours.ID).Attachment)
				w.EC2.Fail("DescribeNetworkInterfaces", code, 0)
				stop()
				for range 2 {
					time.Sleep(time.Hour)
					w.collect()
				}
				if all := w.EC2.ENIs(); len(all) != 1 {
					w.Errorf("left behind: %+v", all[1:])
				}
			})
		})
	}
}
