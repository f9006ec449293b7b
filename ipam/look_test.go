// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// looked has the actions that change nothing, and whose answers an ADD on a new node needs.
var looked = []string{"DescribeNetworkInterfaces", "DescribeSubnets", "DescribeInstanceTypes"}

const throttling = "RequestLimitExceeded"

// TestLookWaits: an ADD also waits if EC2 throttles a call of its growth that changes nothing.
func TestLookWaits(t *testing.T) {
	for _, action := range looked {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Pools = true
				w.EC2.Fail(action, throttling, 12)
				w.mustAcquire(1)
			})
		})
	}
}

// TestLookThrottledForEver: EC2 throttles a describe without end. An ADD waits until its deadline, and its error says
// until when the node waits. The next ADD returns the same error without a call.
func TestLookThrottledForEver(t *testing.T) {
	for _, action := range looked {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Pools = true
				w.EC2.Fail(action, throttling, -1)
				began := time.Now()
				_, err := w.acquire(1)
				wantThrottled(w, err, action)
				if took := time.Since(began); took < w.policy.Timeout-registry.MostBackoff {
					w.Errorf("it has waited for %v of %v", took, w.policy.Timeout)
				}
				before := w.State().NotBefore[action]
				if !before.After(time.Now().Add(-time.Second)) {
					w.Errorf("other processes of the node wait until %v, it is %v", before, time.Now())
				}
				must(w, w.pool().NotBefore(w.Context(), action, 8*time.Second))
				w.policy.Timeout = 2 * time.Second
				w.EC2.ResetCalls()
				_, err = w.acquire(2)
				wantThrottled(w, err, action)
				if n := w.EC2.Asked(action); n > 0 {
					w.Errorf("the next ADD has asked %d times", n)
				}
			})
		})
	}
}

func wantThrottled(t testing.TB, err error, action string) {
	t.Helper()
	e, ok := errors.AsType[*plugin.Error](err)
	if !ok || e.Code != plugin.CodeTryAgain || !strings.Contains(e.Error(), action+
		": EC2 throttles: this node waits until ") ||
		!strings.Contains(e.Hint, "EC2 limits how often the whole account may call "+action) {
		t.Errorf("the ADD fails with %v (%+v)", err, e)
	}
}

// TestThrottledWords: package lease has the same texts about throttling as package aws, which it must not import.
func TestThrottledWords(t *testing.T) {
	const action = "CreateNetworkInterface"
	text, hint := lease.Throttled(action, time.Now())
	want := aws.Hint(&aws.Error{Action: action, Code: throttling})
	if hint != want || !strings.HasPrefix(text, fmt.Sprintf("%s: %v: ", action, aws.ErrThrottled)) {
		t.Errorf("%q, and the hint %q, want %q", text, hint, want)
	}
}

// TestThrottledIsNotPrepared: while EC2 throttles the call that a growth needs, no ADD makes the describes that would
// come before this call.
func TestThrottledIsNotPrepared(t *testing.T) {
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface", "AssignPrivateIpAddresses"} {
		t.Run(action, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				if action == "AssignPrivateIpAddresses" {
					w.mustAcquire(100)
				}
				w.EC2.Fail(action, throttling, -1)
				if _, err := w.acquire(0); !errors.Is(err, aws.ErrThrottled) {
					w.Fatal(err)
				}
				w.EC2.ResetCalls()
				for n := range 40 {
					must(w, w.pool().NotBefore(w.Context(), action, 5*time.Second))
					ctx, cancel := context.WithTimeout(w.Context(), time.Second)
					_, err := w.pool().Acquire(ctx, pod(n+1))
					wantThrottled(w, err, action)
					cancel()
				}
				// One of the ADDs compares the new registry with EC2, by two calls.
				if calls := w.EC2.Calls(); len(calls) > 2 {
					w.Errorf("%d calls, such as %v", len(calls), calls[2])
				}
				w.EC2.Fail(action, throttling, 0)
				w.mustAcquire(99)
			})
		})
	}
}

// TestThrottledModify: while EC2 throttles the call that sets DeleteOnTermination, a growth does not repeat this call.
func TestThrottledModify(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.Fail(book.ModifyAction, throttling, -1)
		w.mustAcquire(1)
		if w.State().NotBefore[book.ModifyAction].IsZero() {
			w.Fatal("the other processes of the node are not told")
		}
		must(w, w.pool().NotBefore(w.Context(), book.ModifyAction, registry.MostBackoff))
		w.EC2.ResetCalls()
		w.mustAcquire(2)
		if calls := w.EC2.Calls(); len(calls) != 1 || calls[0].Action != "AssignPrivateIpAddresses" {
			w.Errorf("the next ADD has asked %v", calls)
		}
		w.EC2.Fail(book.ModifyAction, throttling, 0)
		time.Sleep(registry.MostBackoff)
		w.EC2.ResetCalls()
		w.mustAcquire(3)
		w.noneLeaked()
		if n := w.describes(); n > 0 {
			w.Errorf("it has asked %d times for what the attachment has told", n)
		}
	})
}

// TestThrottledModifyOfAnEndedAttachment: EC2 throttles the call that sets DeleteOnTermination. Before the node repeats
// it, an operator detaches the ENI and attaches it again. The node sets DeleteOnTermination of the new attachment.
func TestThrottledModifyOfAnEndedAttachment(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.EC2.Fail(book.ModifyAction, throttling, -1)
		w.mustAcquire(1)
		made := w.EC2.ENIs()[1]
		w.Operate("DetachNetworkInterface", "AttachmentId", made.Attachment)
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", made.ID, "InstanceId", w.ID, "DeviceIndex", "2")
		w.EC2.Fail(book.ModifyAction, throttling, 0)
		time.Sleep(registry.MostBackoff)
		w.mustAcquire(2)
		w.noneLeaked()
		if s := w.State(); len(s.Intents) > 0 {
			w.Errorf("left: %v", s.Intents)
		}
	})
}
