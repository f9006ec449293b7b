// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/known"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// TestServes: an ENI at device index 0 of a card other than card 0 never serves pods, except if it is the boot ENI.
func TestServes(t *testing.T) {
	for _, test := range []struct{ least, card, index, want int }{
		{0, 0, 0, 1}, {1, 0, 0, 0}, {1, 0, 1, 1}, {2, 0, 1, 0},
		{0, 1, 0, 0}, {0, 1, 1, 1}, {1, 1, 1, 1}, {2, 1, 1, 0}, {2, 1, 2, 1}, {0, 0, aws.UnknownIndex, 0},
	} {
		got := lease.Policy{MinIndex: test.least}.Serves(registry.ENI{Card: test.card, Index: test.index})
		if got != (test.want == 1) {
			t.Errorf("%+v: %v", test, got)
		}
	}
	// At any slot, the boot ENI serves pods only if interfaceIndex is 0.
	for _, at := range []slot{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
		for least := range 3 {
			got := lease.Policy{MinIndex: least}.Serves(registry.ENI{Card: at.card, Index: at.index,
				Boot: at != slot{}})
			if got != (least == 0) {
				t.Errorf("the boot ENI at %v, with interfaceIndex %d: %v", at, least, got)
			}
		}
	}
}

// TestRequestAtZero: a pod asks for an ENI that an operator has attached at device index 0 of another card. This ENI is
// not the boot ENI, so the pod gets its primary address.
func TestRequestAtZero(t *testing.T) {
	w := cards(t, ec2sim.RunInstance{})
	must(t, w.pool().Learn(t.Context()))
	e := w.given(aws.ENISpec{Subnet: "subnet-node"})
	_, err := w.byHand().AttachENI(t.Context(), e.ID, w.ID, 1, 0)
	must(t, err)
	w.getsCooled(e.ID, 1)
	w.end(1)
	w.Age(hour)
	// This removes the free address from the registry, as a loss of the registry does.
	w.Edit(func(s *registry.State) { s.Free.Delete(e.Addrs[0]) })
	w.getsCooled(e.ID, 2)
}

// getsCooled checks that the pod n, which asks for the ENI, gets an address of it: at once, or when the address has
// cooled.
func (w *world) getsCooled(eni string, n int) {
	w.Helper()
	ask := fmt.Sprintf(`[{"eni": %q}]`, eni)
	if _, err := w.ask(n, allowAll, ask); err != nil {
		w.Age(hour)
		w.mustAsk(n, ask)
	}
}

// cards returns a world whose node has three network cards. Each card takes three ENIs with four addresses. Six ENIs of
// the node can serve pods.
func cards(t *testing.T, run ec2sim.RunInstance) *world {
	c := podSubnets(20)
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "three.cards", ENIs: 9, IPv4PerENI: 4, Cards: []int{3, 3, 3}}}
	run.Type, run.Subnet = "three.cards", "subnet-node"
	return launch(t, c, run)
}

// attached returns the slots of the node's managed ENIs, as EC2 shows them. The form of a slot is "card.index".
func (w *world) attached() (at []string) {
	for _, e := range w.ENIs() {
		if e.Tags[book.TagManaged] == "true" {
			at = append(at, fmt.Sprintf("%d.%d", e.Card, e.Index))
		}
	}
	return at
}

func (w *world) wantSlots(want string) {
	w.Helper()
	if got := strings.Join(w.attached(), " "); got != want {
		w.Errorf("ENIs for pods are at %s, want %s", got, want)
	}
	w.consistent()
}

// TestBurstOnCards: a burst takes all slots of all cards. The error of a later ADD says why it gets no address.
func TestBurstOnCards(t *testing.T) {
	w := cards(t, ec2sim.RunInstance{})
	const room, late = 6 * 4, 6
	var mu sync.Mutex
	got, refused := map[netip.Addr]int{}, 0
	var wg sync.WaitGroup
	for n := range room + late {
		wg.Go(func() {
			a, err := w.acquire(n)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				got[a.Addrs[0]]++
				return
			}
			refused++
			if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain ||
				!strings.Contains(err.Error(), aws.ErrInstanceFull.Error()) || e.Hint == "" {
				t.Errorf("pod %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	if len(got) != room || refused != late {
		t.Errorf("%d distinct addresses, %d refused; want %d and %d", len(got), refused, room, late)
	}
	w.wantSlots("0.1 0.2 1.1 1.2 2.1 2.2")
	if n := w.writes()["AttachNetworkInterface"]; n != 6 || len(w.EC2.ENIs()) != 7 {
		t.Errorf("%d attachments, %d ENIs", n, len(w.EC2.ENIs()))
	}
	for id, e := range w.State().ENIs {
		i := slices.IndexFunc(w.ENIs(), func(known ec2sim.ENI) bool { return known.ID == id })
		if known := w.ENIs()[i]; known.Card != e.Card || known.Index != e.Index {
			t.Errorf("%s: the registry has it at %d.%d, EC2 at %d.%d", id, e.Card, e.Index, known.Card, known.Index)
		}
	}
}

// TestCardsWithEFA: ENIs that are only for EFA keep their slots, and no process changes them.
func TestCardsWithEFA(t *testing.T) {
	w := cards(t, ec2sim.RunInstance{EFAOnly: 3})
	for n := range 5 * 4 {
		w.mustAcquire(n)
	}
	w.wantSlots("0.2 1.1 1.2 2.1 2.2")
	if _, err := w.acquire(99); !errors.Is(err, aws.ErrInstanceFull) {
		t.Errorf("one too many: %v", err)
	}
	for n := range 5 * 4 {
		w.end(n)
	}
	w.Age(2 * lease.StaleMetadata)
	if _, err := w.pool().Collect(t.Context(), less.Collection{FreeAfter: lease.StaleMetadata, Max: -1}); err != nil {
		t.Fatal(err)
	}
	w.wantSlots("")
	if n := len(w.ENIs()); n != 4 {
		t.Errorf("%d ENIs are left, want the boot ENI and three for EFA", n)
	}
	for _, c := range w.EC2.Calls() {
		for _, e := range w.ENIs() {
			if e.EFAOnly && (c.Params["NetworkInterfaceId"] == e.ID || c.Params["AttachmentId"] == e.Attachment) {
				t.Errorf("%s is for EFA: %s", e.ID, c)
			}
		}
	}
}

// TestSlotRefused: EC2 refuses to attach an ENI. For example, another program has taken the slot, the card does not
// accept the ENI, or the instance is full. The ADD tries other slots if this can help.
func TestSlotRefused(t *testing.T) {
	const taken = "Instance 'i-1' already has an interface attached at device index '1'."
	const beyond = "The specified number '1' for the device index exceeds the maximum number of network interfaces " +
		"supported by the network card at network card index 1."
	for _, test := range []struct {
		name, code, message string
		times               int
		want                string
		is                  error // the error of the first ADD
		attempts            int
	}{
		{"index", "InvalidParameterValue", taken, 1, "2.1", nil, 2},
		{"two indices", "InvalidParameterValue", taken, 2, "0.1", nil, 3},
		{"every index", "InvalidParameterValue", taken, -1, "", aws.ErrIndexTaken, 5},
		{"card", "InvalidParameterValue", beyond, 1, "0.1", nil, 2},
		{"cards", "InvalidParameterValue", beyond, 2, "2.1", nil, 3},
		{"every card", "InvalidParameterValue", beyond, -1, "", aws.ErrCardFull, 3},
		{"card is full", "AttachmentLimitExceeded", "Interface count 4 exceeds the limit for three.cards", 1,
			"0.1", nil, 2},
		{"instance is full", "AttachmentLimitExceeded", "Interface count 10 exceeds the limit for three.cards", -1, "",
			aws.ErrInstanceFull, 3},
		{"something new", "UnsupportedOperation", "Not on this card.", 1, "0.1", nil, 2},
		{"instance is stopping", "InvalidParameterValue", "Instance 'i-1' is not 'running'.", -1, "",
			aws.ErrNotRunning, 1},
		{"not allowed", "UnauthorizedOperation", "No.", -1, "", aws.ErrDenied, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := cards(t, ec2sim.RunInstance{})
			w.EC2.FailAs("AttachNetworkInterface", test.code, test.message, test.times)
			if _, err := w.acquire(1); !errors.Is(err, test.is) {
				t.Errorf("got %v, want %v", err, test.is)
			}
			w.wantSlots(test.want)
			if attempts := w.EC2.Asked("AttachNetworkInterface"); attempts != test.attempts {
				t.Errorf("%d attempts, want %d", attempts, test.attempts)
			}
			w.EC2.Fail("AttachNetworkInterface", "", 0)
			if errors.Is(test.is, aws.ErrInstanceFull) || errors.Is(test.is, aws.ErrNotRunning) ||
				errors.Is(test.is, aws.ErrCardFull) {
				if n := len(w.EC2.ENIs()); n != 1 {
					t.Errorf("%d ENIs, want the boot ENI", n)
				}
				return
			}
			w.Forgive()
			w.mustAcquire(2) // finishes what the first ADD has begun
			if n := len(w.attached()); n != 1 {
				t.Errorf("%d ENIs for pods", n)
			}
		})
	}
}

// TestResumeOnCard: something fails between the creation of an ENI and its attachment. The next process attaches this
// ENI to the card for which the ENI was meant.
func TestResumeOnCard(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault func(*ec2sim.Sim)
	}{
		{"EC2 fails", func(s *ec2sim.Sim) { s.Fail("AttachNetworkInterface", "InternalError", 2) }},
		{"EC2 is not ready", func(s *ec2sim.Sim) { s.Fail("AttachNetworkInterface", "IncorrectState", 1) }},
		{"the answer is lost", func(s *ec2sim.Sim) { s.Lose("AttachNetworkInterface", 1) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := cards(t, ec2sim.RunInstance{})
			test.fault(w.EC2)
			w.mustAcquire(1)
			w.wantSlots("1.1")
			if e := w.ENIs()[1]; !e.DeleteOnTermination || len(w.State().Intents) > 0 ||
				w.writes()["CreateNetworkInterface"] != 1 {
				t.Errorf("%+v, intents %v, writes %v", e, w.State().Intents, w.writes())
			}
		})
	}
}

// TestSlotOfDetached: an operator has detached an ENI, and the registry still has it. The node attaches the ENI at its
// old slot again.
func TestSlotOfDetached(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	a, err := w.acquire(1)
	must(t, err)
	w.policy.MaxENIs = 2
	w.Edit(func(s *registry.State) { s.Instance.ENIs = 2 })
	w.Operate("DetachNetworkInterface", "AttachmentId", w.ENIs()[1].Attachment)
	_, at, err := w.pool().AttachAnywhere(t.Context(), call.Object{ENI: a.ID}, 1, known.Attached{})
	if err != nil || at.Index != 1 {
		t.Errorf("attached at %+v: %v", at, err)
	}
}
