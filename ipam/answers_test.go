// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
)

// describes counts the calls since the last ResetCalls whose action is in the list looked.
func (w *world) describes() (n int) {
	for _, action := range looked {
		n += w.EC2.Asked(action)
	}
	return n
}

// givesUp runs an ADD, which must fail because EC2 throttles.
func (w *world) givesUp(pod int) {
	w.Helper()
	if _, err := w.acquire(pod); !errors.Is(err, aws.ErrThrottled) {
		w.Fatalf("an ADD while EC2 throttles: %v", err)
	}
}

// TestAnswersServeTheNext: EC2 throttles a call, so ADDs give up, one after another. Later ADDs use the answers that
// the first ADDs have kept, and make no describe.
func TestAnswersServeTheNext(t *testing.T) {
	for _, c := range []struct {
		action string
		first  int // number of ADDs until the node has kept all answers
		// CreateNetworkInterface: the first ADD asks for subnets and ENIs before EC2 throttles, and keeps no answer.
	}{{"CreateNetworkInterface", 2}, {"AttachNetworkInterface", 1}} {
		t.Run(c.action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.EC2.Fail(c.action, throttling, -1)
				for n := range c.first {
					w.givesUp(n)
				}
				w.EC2.ResetCalls()
				for n := range 5 {
					w.givesUp(10 + n)
				}
				if n := w.describes(); n > 0 {
					w.Errorf("the ADDs after the first have asked %d times", n)
				}
				w.EC2.Fail(c.action, "", 0)
				w.mustAcquire(20)
				if n := w.describes(); n > 0 {
					w.Errorf("the ADD that succeeds has asked %d times", n)
				}
				w.consistent()
			})
		})
	}
}

// TestAnswersEnd: a process uses a kept answer of EC2 for ten minutes, and only while EC2 throttles.
func TestAnswersEnd(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.Fail("CreateNetworkInterface", throttling, -1)
		w.givesUp(1)
		w.EC2.ResetCalls()
		for began := time.Now(); time.Since(began) < 2*known.KeptLife+known.KeptLife/2; {
			w.givesUp(2)
		}
		if n := w.EC2.Asked("DescribeSubnets"); n != 3 { // by the second ADD, and ten and twenty minutes later
			w.Errorf("in 25 minutes, ADDs have asked %d times for subnets, want 3", n)
		}
		time.Sleep(known.JustNow + time.Minute)
		w.EC2.Fail("CreateNetworkInterface", "", 0)
		w.EC2.ResetCalls()
		w.mustAcquire(4)
		if w.EC2.Asked("DescribeSubnets") == 0 || w.EC2.Asked("DescribeNetworkInterfaces") == 0 {
			w.Error("an ADD uses old answers while EC2 does not throttle")
		}
	})
}

// TestAnswersTooOld: after an ADD has kept an answer of EC2, an operator attaches an ENI at a free slot. EC2 refuses
// this slot to the next ADD, which then attaches its ENI at another slot.
func TestAnswersTooOld(t *testing.T) {
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface"} {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
				w.EC2.Fail(action, throttling, -1)
				w.givesUp(1)
				w.givesUp(2)
				w.EC2.Fail(action, "", 0)
				w.attachAt(1)
				w.mustAcquire(3)
				w.consistent()
				if intents := w.State().Intents; len(intents) > 0 {
					w.Errorf("left: %v", intents)
				}
			})
		})
	}
}

// TestAnswersOfAnENIAttachedSince: EC2 throttles the attachment of a new ENI, and then an operator attaches this ENI.
// EC2 refuses the attachment by the next ADD. This ADD then asks EC2 about the ENI, and uses the ENI.
func TestAnswersOfAnENIAttachedSince(t *testing.T) {
	inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
		w.EC2.Fail("AttachNetworkInterface", throttling, -1)
		w.givesUp(1)
		w.givesUp(2)
		enis := w.EC2.ENIs()
		made := enis[len(enis)-1].ID
		w.EC2.Fail("AttachNetworkInterface", "", 0)
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", made, "InstanceId", w.ID, "DeviceIndex", "2")
		w.mustAcquire(3)
		w.consistent()
		if n := len(w.ENIs()); n != 2 {
			w.Errorf("the instance has %d ENIs, want the boot ENI and %s", n, made)
		}
	})
}

// TestAnswersAndCollections: EC2 throttles the attachment of an ENI. A collection leaves the ENI to the next ADD. If no
// ADD comes within known.KeptLife, the next collection deletes the ENI.
func TestAnswersAndCollections(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.Fail("AttachNetworkInterface", throttling, -1)
		w.givesUp(1)
		w.collect()
		if n := len(w.EC2.ENIs()); n != 2 {
			w.Fatalf("%d ENIs, want the boot ENI and a new one", n)
		}
		time.Sleep(known.KeptLife)
		w.collect()
		if n := len(w.EC2.ENIs()); n != 1 {
			w.Errorf("%d ENIs, and no ADD wants one", n)
		}
	})
}

// TestAnswersOfTwoPools: EC2 throttles the attachment of an ENI. An ADD of another pool leaves this ENI alone. The next
// ADD of the ENI's own pool attaches the ENI.
func TestAnswersOfTwoPools(t *testing.T) {
	inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
		w.policy.Pools = true
		w.EC2.Fail("AttachNetworkInterface", throttling, -1)
		w.givesUp(1)
		made := w.EC2.ENIs()[1].ID
		w.EC2.Fail("AttachNetworkInterface", "", 0)
		w.policy.Pool = "other"
		w.mustAcquire(2)
		w.policy.Pool = ""
		w.mustAcquire(3)
		if s := w.State(); s.ENIs[made].Pool != "" || !s.ENIs[made].Managed || len(s.Intents) > 0 {
			w.Errorf("%s: %+v, intents %v", made, s.ENIs[made], s.Intents)
		}
		if n := w.EC2.Asked("DeleteNetworkInterface"); n > 0 {
			w.Errorf("%d ENIs were deleted", n)
		}
		w.consistent()
	})
}
