// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// fill gives pods all addresses that ENIs can have. The argument enis is the number of these ENIs. fill returns their
// IDs. The ENIs are then ten minutes old, so they do not count as new.
func (w *world) fill(enis int) (ids []string) {
	w.Helper()
	const each = 10 // m5.large
	w.policy.Batch = 0
	for n := range enis * each {
		w.mustAcquire(n)
	}
	for _, e := range w.ENIs()[1:] {
		ids = append(ids, e.ID)
	}
	time.Sleep(10 * time.Minute)
	return ids
}

// byOperator detaches an ENI as an operator does, and resets the list of calls.
func (w *world) byOperator(id string) {
	w.Helper()
	w.Operate("DetachNetworkInterface", "AttachmentId", w.ENI(id).Attachment)
	w.EC2.ResetCalls()
}

// TestFullAndDetached: an operator detaches an ENI of a full instance. The slot of this ENI is free for the next ADD at
// once, although no ADD has waited for the link of the ENI.
func TestFullAndDetached(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		enis := w.fill(2)
		if _, err := w.acquire(20); !errors.Is(err, aws.ErrInstanceFull) {
			w.Fatalf("got %v", err)
		}
		w.byOperator(enis[0])
		w.mustAcquire(21)
	})
}

// TestFullAndDetachedOther: an operator detaches a foreign ENI of a full instance. Its slot is free for the next ADD
// after a minute, although the link of a foreign ENI need not be on the node.
func TestFullAndDetachedOther(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		guest := w.attachForeign(map[string]string{book.TagNoManage: "true"})
		w.fill(1)
		if _, err := w.acquire(20); !errors.Is(err, aws.ErrInstanceFull) {
			w.Fatalf("got %v", err)
		}
		w.byOperator(guest)
		time.Sleep(time.Minute)
		w.mustAcquire(21)
		time.Sleep(time.Hour)
		w.collect()
		if e, known := w.State().ENIs[guest]; known {
			w.Errorf("it is not forgotten: %+v", e)
		}
	})
}

// TestFullAndRequestedDetached: EC2 takes an hour to detach an ENI on request from a full instance, and the collection
// that has begun this has ended. When EC2 has finished, the slot of the ENI is free for the next ADD.
func TestFullAndRequestedDetached(t *testing.T) {
	const takes = time.Hour
	inSlowBubble(t, "m5.large", takes, func(w *world, _ *wires) {
		eni := w.given(aws.ENISpec{Subnet: "subnet-node"}).ID
		w.mustAsk(99, fmt.Sprintf(`[{"eni": %q}]`, eni))
		w.fill(1)
		w.end(99)
		if _, err := w.pool().Collect(w.Context(), less.Collection{Max: -1}); err == nil {
			w.Error("EC2 still detaches the ENI, and the collection does not say so")
		}
		if _, err := w.acquire(20); !errors.Is(err, aws.ErrInstanceFull) {
			w.Errorf("while EC2 detaches the ENI: %v", err)
		}
		time.Sleep(takes)
		w.mustAcquire(21)
		w.collect()
		if e, known := w.State().ENIs[eni]; known {
			w.Errorf("it is not forgotten: %+v", e)
		}
		w.consistent()
	})
}

// TestFullAndDeleted: an ADD deletes an ENI of a full instance, to make room. EC2 still lists the ENI as attached, but
// the ADD attaches its new ENI at the free slot.
func TestFullAndDeleted(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		eni := w.fill(2)[0]
		for n := range 10 {
			w.end(n)
		}
		time.Sleep(10 * time.Minute)
		w.Edit(func(s *registry.State) { s.Edit(eni, func(e *registry.ENI) { e.Retired = true }) })
		must1(w.pool().Cloud.DescribeENIs(w.Context(), aws.ByInstance(w.ID)))(w)
		wires.lags.Store(true)
		w.EC2.ResetCalls()
		w.mustAcquire(20)
		if n := w.writes()[book.CreateAction]; n != 1 {
			w.Errorf("%d ENIs were created", n)
		}
		w.consistent()
	})
}

// TestStrayBesideDetached: a growth was killed before it attached its ENI, and an operator has detached another ENI.
// The next ADD attaches the ENI of the growth at the free slot. The registry does not say that EC2 has refused an ENI.
func TestStrayBesideDetached(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		enis := w.fill(2)
		stray := w.stray()
		w.byOperator(enis[1])
		w.mustAcquire(20)
		if e := w.ENI(stray); e.Instance != w.ID || w.EC2.Asked("CreateNetworkInterface") != 0 {
			w.Errorf("%+v; calls %v", e, w.EC2.Calls())
		}
		if until := w.State().Instance.FullUntil; !until.IsZero() {
			w.Errorf("full until %v", until)
		}
	})
}

// TestRefusalEnds: EC2 refuses to attach an ENI, for a reason that EC2's describes do not show. For some minutes, the
// node makes few calls. If an operator detaches an ENI, the node tries again before these minutes end.
func TestRefusalEnds(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		enis := w.fill(1)
		w.EC2.Fail("AttachNetworkInterface", "AttachmentLimitExceeded", 1)
		began := time.Now()
		w.EC2.ResetCalls()
		for time.Since(began) < 4*time.Minute {
			if _, err := w.acquire(20); !errors.Is(err, aws.ErrInstanceFull) {
				w.Fatalf("got %v", err)
			}
			time.Sleep(5 * time.Second)
		}
		if made, looked := w.EC2.Asked("CreateNetworkInterface"), w.EC2.Asked("DescribeNetworkInterfaces"); made != 1 ||
			looked > 12 {
			w.Errorf("%d ENIs were made, and EC2 was asked %d times", made, looked)
		}
		w.byOperator(enis[0])
		time.Sleep(30 * time.Second)
		w.mustAcquire(21)
		if left := time.Until(began.Add(5 * time.Minute)); left < 0 {
			w.Errorf("this shows nothing: the refusal had ended %v before", -left)
		}
	})
}

// TestDeletedThoughHidden: EC2's describes do not show an ENI right after it was detached. The node still deletes it.
func TestDeletedThoughHidden(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		w.mustAcquire(1)
		w.end(1)
		time.Sleep(time.Hour)
		w.EC2.OnChange(func(c ec2sim.Change) {
			if c.Kind == ec2sim.Detached {
				wires.hidden.Store(c.ENI.ID)
				time.AfterFunc(5*time.Second, func() { wires.hidden.Store("") })
			}
		})
		c := w.collect()
		if all := w.EC2.ENIs(); len(all) != 1 || len(c.Deleted) != 1 {
			w.Errorf("%d ENIs are left, deleted are %v", len(all)-1, c.Deleted)
		}
	})
}

// TestDetachedByOneDescribe: the link of an ENI is missing for a moment. EC2's answer about all ENIs lacks this ENI,
// but the answer about only this ENI shows it on the instance. The registry keeps the ENI.
func TestDetachedByOneDescribe(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, wires *wires) {
		w.mustAcquire(1)
		w.end(1)
		time.Sleep(time.Hour)
		id := w.ENIs()[1].ID
		link := nl.Veth{Name: "vpc" + id[len(id)-4:], Peer: "eth1", PeerNS: w.Host}
		must(w, link.Del(w.Host))
		wires.hidden.Store(id)
		wires.by = "attachment.instance-id"
		c := less.Collection{FreeAfter: 24 * time.Hour, Max: -1}
		for range 2 {
			time.Sleep(time.Minute)
			must1(w.pool().Collect(w.Context(), c))(w)
		}
		if e, known := w.State().ENIs[id]; !known || e.Detached {
			w.Errorf("it is attached, as EC2 says; known: %v, %+v", known, e)
		}
	})
}

// TestPassedOverKeepsCode: the error of an ADD also names an ENI that the ADD passes over. This text does not change
// the CNI error code.
func TestPassedOverKeepsCode(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.mustAcquire(1)
		id := w.ENIs()[1].ID
		w.Edit(func(s *registry.State) {
			e := s.ENIs[id]
			e.Missed = time.Now().Add(-time.Hour)
			s.ENIs[id] = e
		})
		for _, cause := range []error{plugin.Errorf(plugin.CodeIO, "a hint", "a fault"), errors.New("a fault")} {
			want := uint(plugin.CodeTryAgain)
			if e, ok := errors.AsType[*plugin.Error](cause); ok {
				want = e.Code
			}
			got, _ := errors.AsType[*plugin.Error](w.pool().withPassedOver(cause))
			if got == nil || got.Code != want || !strings.Contains(got.Error(), id) {
				w.Errorf("%v became %+v", cause, got)
			}
		}
	})
}

// TestHintFull: the hint about a full instance names only what limits its ENIs.
func TestHintFull(t *testing.T) {
	const fewer = "lower --max-pods of the kubelet (see 'cni-ipvlan-vpc-k8s-tool maxpods')"
	tests := []struct {
		name    string
		maxENIs int
		refused bool
		want    string
	}{
		{name: "maxENIs", maxENIs: 2,
			want: "maxENIs is 2 (m5.large allows 3): raise maxENIs, set prefixDelegation, or " + fewer},
		{name: "the type",
			want: "this m5.large can have no more ENIs: set prefixDelegation, take a larger instance type, or " +
				fewer},
		{name: "maxENIs is the type's limit", maxENIs: 3,
			want: "this m5.large can have no more ENIs: set prefixDelegation, take a larger instance type, or " +
				fewer},
		{name: "maxENIs is higher", maxENIs: 9,
			want: "this m5.large can have no more ENIs: set prefixDelegation, take a larger instance type, or " +
				fewer},
		{name: "EC2 has refused another", maxENIs: 2, refused: true,
			want: "m5.large can have 3 ENIs, and this node has 2, but EC2 counts more attachments. On most Nitro " +
				"types, EBS volumes take slots of ENIs: detach volumes, set prefixDelegation, take a larger " +
				"instance type, or " + fewer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.MaxENIs = tt.maxENIs
				enis := 2 // beside the boot ENI
				if tt.maxENIs == 2 {
					enis = 1
				}
				w.fill(enis)
				if tt.refused {
					w.Edit(func(s *registry.State) {
						s.Instance.FullUntil, s.Instance.FullWith, s.Instance.FullRead =
							time.Now().Add(time.Minute), enis+1, time.Now()
					})
				}
				_, err := w.acquire(99)
				got, _ := errors.AsType[*plugin.Error](err)
				if got == nil || !errors.Is(err, aws.ErrInstanceFull) || got.Hint != tt.want {
					w.Errorf("got %+v, want the hint %q", got, tt.want)
				}
			})
		})
	}
	t.Run("prefixes and interfaceIndex", func(t *testing.T) {
		p := &Pool{}
		p.Policy.Prefixes, p.Policy.MinIndex = true, 1
		s := &registry.State{Instance: registry.Instance{Type: "c6in.32xlarge", ENIs: 14}}
		if got, want := p.HintFull(s), "this c6in.32xlarge can have no more ENIs: take a larger instance type, or "+
			fewer; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		p.Policy.MinIndex = 7
		if got, want := p.HintFull(s), "lower interfaceIndex, take a larger instance type than c6in.32xlarge, or "+
			fewer; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		p.Policy.Families = dual
		if got, want := p.HintFull(s), "correct ipFamilies, or take an instance type with IPv6"; got != want {
			t.Errorf("without IPv6 of the type: got %s, want %s", got, want)
		}
	})
}

// TestFullByOthers: an operator has assigned addresses to an ENI, and the registry does not have them. So EC2 refuses
// to assign the number of addresses that the node wants. The ENI gets fewer addresses, and the pod gets one of them.
func TestFullByOthers(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionAssign, lease.ProvisionFull} {
		t.Run(string(provision), func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.mustAcquire(1)
				w.policy.Provision, w.policy.Batch = provision, 8
				eni := w.ENIs()[1].ID
				_, err := w.byHand().Assign(w.Context(), eni, 6)
				must(w, err)
				if _, err := w.acquire(2); err != nil {
					w.Error(err)
				}
				if n := len(w.ENI(eni).Addrs); n != 10 || len(w.ENIs()) != 2 {
					w.Errorf("it has %d addresses, and there are %d ENIs", n, len(w.ENIs()))
				}
				w.consistent()
			})
		})
	}
}

// TestReattachedCools: an operator detaches an ENI whose pod has just ended, and the node loses its registry. A later
// ADD attaches the ENI again, perhaps after a request was lost, after a failed ADD, or after a process was killed. The
// addresses of the ENI cool again, so the next pod does not get the ended pod's address.
func TestReattachedCools(t *testing.T) {
	denied := ec2sim.Refused("UnauthorizedOperation") // refuses the SDK's second attempt, so the ADD fails
	for name, attempts := range map[string][]ec2sim.Outcome{
		"at once": {}, "repeated": {ec2sim.UndoneLost}, "by another": {ec2sim.UndoneLost, denied}, "killed": {},
	} {
		for _, prefixes := range []bool{false, true} {
			inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
				w.policy.Prefixes = prefixes
				had := must1(w.acquire(0))(w)
				w.end(0)
				w.byOperator(had.ID)
				w.Lose()
				must(w, w.Registry().Mark(known.ReleasedMark)) // the mark says that the node may have had pods
				w.EC2.Script("AttachNetworkInterface", attempts...)
				if name == "killed" { // before the process records that the ENI is attached
					w.Edit(func(s *registry.State) {
						s.Intents["killed"] = registry.Intent{Action: book.AttachAction, ENI: had.ID, Since: time.Now(),
							Served: true}
					})
					w.Operate("AttachNetworkInterface", "NetworkInterfaceId", had.ID, "InstanceId", w.ID,
						"DeviceIndex", "1")
				}
				got, err := w.acquire(1)
				if err != nil {
					w.Edit(func(s *registry.State) { clear(s.Refusals) })
					got = must1(w.acquire(2))(w)
				}
				if e := w.ENI(had.ID); e.Instance == "" {
					w.Errorf("%s, prefixes %v: %s was not attached again", name, prefixes, had.ID)
				}
				if slices.Contains(got.Addrs, had.Addrs[0]) {
					w.Errorf("%s, prefixes %v: the next pod has %v of the pod that has just ended", name, prefixes,
						got.Addrs)
				}
			})
		}
	}
}

// TestReattachedBesideCreation: an operator detaches an ENI whose pod has just ended, and the node loses its registry.
// EC2 does not show the detached ENI yet, and does not answer the creation of another ENI. The next ADD attaches the
// first ENI again. The unfinished creation does not prove that no pod has had its addresses, so they cool.
func TestReattachedBesideCreation(t *testing.T) {
	inBubble(t, "m5.xlarge", func(w *world, wires *wires) {
		had := must1(w.acquire(0))(w)
		w.end(0)
		w.byOperator(had.ID)
		w.Lose()
		must(w, w.Registry().Mark(known.ReleasedMark)) // the mark says that the node may have had pods
		wires.hidden.Store(had.ID)
		w.EC2.Script(book.CreateAction, slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 20)...)
		w.policy.Timeout = 2 * time.Second
		if got, err := w.acquire(1); err == nil {
			w.Fatalf("got %v, although EC2 creates no ENI", got.Addrs)
		}
		wires.hidden.Store("")
		w.EC2.Script(book.CreateAction)
		w.policy.Timeout = time.Minute
		got := must1(w.acquire(2))(w)
		if e := w.ENI(had.ID); e.Instance == "" {
			w.Errorf("%s was not attached again", had.ID)
		}
		if slices.Contains(got.Addrs, had.Addrs[0]) {
			w.Errorf("the next pod has %v of the pod that has just ended", got.Addrs)
		}
	})
}

// TestNoneCounts: with "provision" "none", the error of an ADD does not count the free addresses of other pools as
// leased addresses.
func TestNoneCounts(t *testing.T) {
	w := cards(t, ec2sim.RunInstance{BootIndex: 1, Secondary: 2})
	w.policy.MinIndex, w.policy.Provision = 0, lease.ProvisionNone
	w.mustAcquire(0)
	w.policy.Pool = "other"
	_, err := w.acquire(1)
	if want := "1 addresses of this node are leased, and 1 are cooling or not for this pod"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}
