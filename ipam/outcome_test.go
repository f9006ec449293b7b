// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// The outcomes of calls that do not succeed.
var (
	busyEC2 = ec2sim.Refused("RequestLimitExceeded")
	denied  = ec2sim.Refused("UnauthorizedOperation")
	noRoom  = ec2sim.Refused("InsufficientFreeAddressesInSubnet")
)

// idle gives the node an ENI with addresses and a prefix. One running pod has the primary address. No pod has the other
// addresses, and a collection can release them.
func (w *world) idle() (eni string) {
	w.Helper()
	w.policy.Batch = 4
	a := w.mustAcquire(1)
	w.runPod(a)
	w.mustAcquire(2)
	w.end(2)
	eni = w.EC2.ENIs()[1].ID
	p := w.pool()
	w.policy.Prefixes = true
	w.moreOn(eni)
	if err := p.Learn(w.Context()); err != nil {
		w.Fatal(err)
	}
	w.Age(hour)
	must1(w.pool().Collect(w.Context(), less.Collection{FreeAfter: hour, Max: 0}))(w) // finds no unfinished calls
	return eni
}

// moreOn gets addresses for an ENI, or a prefix if the policy says so.
func (w *world) moreOn(eni string) {
	w.Helper()
	s := w.State()
	must(w, w.pool().MoreOf(w.Context(), s, lease.Place{ID: eni, ENI: s.ENIs[eni]}, lease.IPv4))
}

// has returns how many addresses and prefixes EC2 shows on an ENI.
func (w *world) has(id string) (addrs, prefixes int) {
	for _, e := range w.EC2.ENIs() {
		if e.ID == id {
			return len(e.Addrs), len(e.Prefixes)
		}
	}
	return 0, 0
}

// TestReleaseOutcomes: a collection releases prefixes and addresses by two calls. Whatever the outcomes are, and
// whichever process learns them, the addresses that are free in the registry are on the ENI. If EC2 throttles the first
// call, or the outcome of this call stays unknown, there is no second one.
func TestReleaseOutcomes(t *testing.T) {
	type outcomes = []ec2sim.Outcome
	lost := ec2sim.DoneLost
	for name, tt := range map[string]struct {
		outcomes   outcomes
		prefixes   int  // prefixes that the ENI has in EC2 afterwards
		addrs      bool // whether the ENI has the idle addresses in EC2 afterwards
		freeBlocks int  // prefixes that the registry has on the ENI afterwards
		freeAddrs  bool
	}{
		"the addresses are refused":     {outcomes{ec2sim.Answered, denied}, 0, true, 0, true},
		"the prefixes are refused":      {outcomes{denied}, 1, false, 1, false},
		"the prefixes are throttled":    {outcomes{busyEC2, busyEC2}, 1, true, 1, true},
		"prefixes lost, then throttled": {outcomes{lost, busyEC2}, 0, true, 0, true},
		"prefixes lost, then denied":    {outcomes{lost, denied}, 0, true, 0, true},
		"prefixes lost, then a fault": {outcomes{lost, ec2sim.Refused("InternalError")}, 0,
			true, 0, true},
		"prefixes lost, then not there":  {outcomes{lost}, 0, false, 0, false},
		"addresses lost, then throttled": {outcomes{ec2sim.Answered, lost, busyEC2}, 0, false, 0, false},
		"addresses lost, then denied":    {outcomes{ec2sim.Answered, lost, denied}, 0, false, 0, false},
		"addresses done, with a fault, then not done": {outcomes{ec2sim.Answered, ec2sim.DoneBut("InternalError"),
			busyEC2}, 0, false, 0, false},
		"prefixes lost, then throttled, and EC2 lags": {outcomes{lost, ec2sim.Answered, busyEC2, busyEC2},
			0, true, 0, true},
		"addresses lost, then throttled, and EC2 lags": {outcomes{ec2sim.Answered, lost, ec2sim.Answered, busyEC2,
			busyEC2}, 0, false, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			eni := w.idle()
			before, _ := w.has(eni)
			if strings.HasSuffix(name, lagging) {
				w.lagsBehind(eni)
			}
			w.EC2.Script(book.UnassignAction, tt.outcomes...)
			_, _ = w.pool().Collect(t.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
			w.consistent()
			w.noneElsewhere()
			addrs, prefixes := w.has(eni)
			known := w.State().ENIs[eni]
			if prefixes != tt.prefixes || (addrs == before) != tt.addrs || len(known.Prefixes) != tt.freeBlocks ||
				(len(known.Addrs) == before) != tt.freeAddrs {
				t.Errorf("EC2 has %d of %d addresses and %d prefixes; the registry has %v and %v", addrs, before,
					prefixes, known.Addrs, known.Prefixes)
			}
		})
	}
}

// lagging ends the names of cases in which EC2 lags behind itself.
const lagging = "EC2 lags"

// lagsBehind makes EC2 answer describes of only this ENI with the present state of the ENI, whatever changes later. It
// does the same for describes with one of the filters.
func (w *world) lagsBehind(eni string, filters ...aws.Filter) {
	w.Helper()
	now, sees := map[string][]byte{}, true // by the name of the filter
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		by := r.FormValue("Filter.1.Name")
		if r.FormValue("Action") != "DescribeNetworkInterfaces" || !sees && now[by] == nil {
			w.EC2.ServeHTTP(rw, r)
			return
		}
		if sees {
			shown := httptest.NewRecorder()
			w.EC2.ServeHTTP(shown, r)
			now[by] = shown.Body.Bytes()
		}
		rw.Write(now[by])
	})
	for _, f := range append(filters, aws.ByID(eni)) {
		must1(w.pool().Cloud.DescribeENIs(w.Context(), f))(w)
	}
	sees = false
}

// noneElsewhere checks that the registry has no address on an ENI where EC2 does not have it.
func (w *world) noneElsewhere() {
	w.Helper()
	s := w.State()
	for _, e := range w.EC2.ENIs() {
		for _, a := range s.ENIs[e.ID].Addrs {
			if !slices.Contains(slices.Concat(e.Addrs, e.IPv6Addrs), a) {
				w.Errorf("the registry has %s on %s, EC2 has not", a, e.ID)
			}
		}
		for _, b := range s.ENIs[e.ID].Prefixes {
			if !slices.Contains(slices.Concat(e.Prefixes, e.IPv6Prefixes), b.CIDR) {
				w.Errorf("the registry has %s on %s, EC2 has not", b.CIDR, e.ID)
			}
		}
	}
}

// TestRefusedPrefix: EC2 refuses to unassign a prefix whose addresses still cool. The addresses continue to cool.
func TestRefusedPrefix(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.Prefixes, w.policy.Batch, w.policy.ReuseWait = true, 20, 2*time.Hour
		var cooling []netip.Addr
		for n := range 18 { // two prefixes, of which the second has two pods
			if a := w.mustAcquire(n); n > 15 {
				cooling = append(cooling, a)
				w.end(n)
			}
		}
		time.Sleep(time.Hour)
		w.EC2.Script(book.UnassignAction, denied)
		_, err := w.pool().Collect(w.Context(), less.Collection{FreeAfter: time.Minute, Max: -1})
		if !errors.Is(err, aws.ErrDenied) {
			w.Fatalf("the collection: %v", err)
		}
		for n := range 14 { // all addresses that no pod has had
			if a := w.mustAcquire(20 + n); slices.Contains(cooling, a) {
				w.Errorf("a pod has %s, which cools for an hour more", a)
			}
		}
		for _, a := range cooling {
			if since, _ := w.State().Free.At(a); time.Since(since).Truncate(time.Hour) != time.Hour {
				w.Errorf("%s is free since %v, and its pod has ended an hour ago", a, since)
			}
		}
	})
}

// TestDeallocateOutcomes: as TestReleaseOutcomes, for an address that an operator releases by name.
func TestDeallocateOutcomes(t *testing.T) {
	for name, script := range map[string][]ec2sim.Outcome{
		"throttled": {busyEC2, busyEC2}, "lost, then throttled": {ec2sim.DoneLost, busyEC2},
		"lost, then denied":                  {ec2sim.DoneLost, denied},
		"lost, then throttled, and EC2 lags": {ec2sim.DoneLost, ec2sim.Answered, busyEC2, busyEC2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			eni := w.idle()
			if strings.HasSuffix(name, lagging) {
				w.lagsBehind(eni)
			}
			a := w.EC2.ENIs()[1].Addrs[2]
			w.EC2.Script(book.UnassignAction, script...)
			if gone, err := w.pool().Deallocate(t.Context(), a); err == nil || len(gone) > 0 {
				t.Errorf("%v went back, %v", gone, err)
			}
			w.consistent()
			w.noneElsewhere()
			if kept := slices.Contains(w.State().ENIs[eni].Addrs, a); kept != (name == "throttled") {
				t.Errorf("the registry has it: %v", kept)
			}
			w.EC2.Script(book.UnassignAction)
			if _, err := w.pool().Deallocate(t.Context(), w.EC2.ENIs()[1].Prefixes[0].Addr()); err == nil ||
				!strings.Contains(err.Error(), "prefix") {
				t.Errorf("an address of a prefix: %v", err)
			}
		})
	}
}

// TestDeallocateIPv6: an operator releases an IPv6 address, together with IPv4 addresses.
func TestDeallocateIPv6(t *testing.T) {
	w := newWorld6(t, "t9.xen") // an ENI of this type has single IPv6 addresses, and no prefix
	w.policy.Families, w.policy.Batch = dual, 3
	had, err := w.acquire(1)
	must(t, err)
	free := slices.DeleteFunc(slices.Concat(had.ENI.Addrs), func(a netip.Addr) bool {
		return slices.Contains(had.Addrs, a)
	})
	if !slices.ContainsFunc(free, netip.Addr.Is6) || !slices.ContainsFunc(free, netip.Addr.Is4) {
		t.Fatalf("of %v, %v are free", had.ENI.Addrs, free)
	}
	w.EC2.Fail("UnassignIpv6Addresses", "UnauthorizedOperation", 1)
	if gone, err := w.pool().Deallocate(t.Context(), free...); err == nil ||
		!slices.Equal(gone, slices.DeleteFunc(slices.Clone(free), netip.Addr.Is6)) {
		t.Errorf("%v went back, %v", gone, err)
	}
	w.noneElsewhere()
	w.consistent()
	must1(w.pool().Deallocate(t.Context(), slices.DeleteFunc(free, netip.Addr.Is4)...))(t) // the IPv4 ones have left
	w.noneElsewhere()
	w.consistent()
	e := w.ENIs()[1]
	if left := slices.Concat(e.Addrs, e.IPv6Addrs); !slices.Equal(left, had.Addrs) {
		t.Errorf("the ENI has %v, the pod %v", left, had.Addrs)
	}
	w = newWorld6(t, "m5.large")
	w.policy.Families = dual
	w.mustAcquire(1)
	a := w.ENIs()[1].IPv6Prefixes[0].Addr().Next()
	if _, err := w.pool().Deallocate(t.Context(), a); err == nil || !strings.HasSuffix(err.Error(),
		" as long as the ENI exists") {
		t.Errorf("an address of a /80: %v", err)
	}
}

// TestDeallocateLost: an operator releases an address, and EC2's answer is lost. A collection or the repeated command
// finishes the release. If the node learns the address from metadata before this, the address has no owner, so any pod
// may get it.
func TestDeallocateLost(t *testing.T) {
	for name, finish := range map[string]func(*world, netip.Addr){
		"collection": func(w *world, _ netip.Addr) { w.collect() },
		"command": func(w *world, a netip.Addr) {
			if gone := must1(w.pool().Deallocate(w.Context(), a))(w); !slices.Equal(gone, []netip.Addr{a}) {
				w.Errorf("%v went back, want %s", gone, a)
			}
		},
		"learned again": func(w *world, a netip.Addr) {
			time.Sleep(lease.StaleMetadata)
			must(w, w.pool().Learn(w.Context()))
			w.collect()
			if s := w.State(); !s.Free.Has(a) || len(s.Owners) > 0 {
				w.Errorf("free %v, owners %v", s.Free.Has(a), s.Owners)
			}
			must1(w.pool().Deallocate(w.Context(), a))(w)
		},
	} {
		for _, outcome := range []ec2sim.Outcome{ec2sim.DoneLost, ec2sim.UndoneLost} {
			if name == "learned again" && outcome == ec2sim.DoneLost {
				continue // the address has left the ENI
			}
			t.Run(name, func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.policy.Batch = 4
					w.mustAcquire(1)
					eni := w.ENIs()[1]
					a, b := eni.Addrs[2], eni.Addrs[3]
					time.Sleep(time.Minute)
					w.EC2.Script(book.UnassignAction, slices.Repeat([]ec2sim.Outcome{outcome}, 50)...)
					gone, err := w.pool().Deallocate(w.Context(), a)
					const hint = "registry-gc also finishes the release"
					if err == nil || len(gone) > 0 || !strings.Contains(err.Error(), hint) {
						w.Errorf("%v went back, %v", gone, err)
					}
					w.EC2.Script(book.UnassignAction)
					finish(w, a)
					if e := w.ENI(eni.ID); slices.Contains(e.Addrs, a) || !slices.Contains(e.Addrs, b) {
						w.Errorf("%s was named, and the ENI has %v", a, e.Addrs)
					}
					if s := w.State(); len(s.Intents) > 0 {
						w.Errorf("intents %v", s.Intents)
					}
					w.noneElsewhere()
					w.consistent()
				})
			})
		}
	}
}

// TestDeallocateUnansweredNone: a network of a node must change nothing in EC2. An operator releases an address, and
// EC2 does not answer. Collections do not repeat the call, and one of them deletes the intent. If EC2 has not carried
// out the call, pods can have the address.
func TestDeallocateUnansweredNone(t *testing.T) {
	for name, outcome := range map[string]ec2sim.Outcome{"done": ec2sim.DoneLost, "undone": ec2sim.UndoneLost} {
		for _, other := range []lease.Provision{lease.ProvisionNone, lease.ProvisionAssign, lease.ProvisionFull} {
			t.Run(name+", the other network has "+string(other), func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.policy.Batch = 4
					w.mustAcquire(1)
					a := w.ENIs()[1].Addrs[2]
					time.Sleep(time.Hour)
					w.policy.Provision = lease.ProvisionNone
					w.policy = lease.Common(w.policy, w.another(other))
					w.EC2.Script(book.UnassignAction, slices.Repeat([]ec2sim.Outcome{outcome}, 50)...)
					p := w.pool()
					p.Policy = lease.Policy{} // as the tool does
					_, err := p.Deallocate(w.Context(), a)
					if err == nil || !strings.Contains(err.Error(), `"provision" of a network of the node is "none"`) {
						w.Errorf("Deallocate: %v", err)
					}
					w.EC2.Script(book.UnassignAction)
					w.EC2.ResetCalls()
					w.collect()
					time.Sleep(2 * lease.StaleMetadata)
					w.collect()
					w.wantWrites(map[string]int{})
					if s := w.State(); len(s.Intents) > 0 || s.Free.Has(a) != (outcome == ec2sim.UndoneLost) {
						w.Errorf("intents %v, %s is free: %v", s.Intents, a, s.Free.Has(a))
					}
					w.consistent()
				})
			})
		}
	}
}

// TestDeallocateMoved: an operator moves an ENI to another node, and then releases an address of it on this node.
// Nothing changes, because the address is no longer this node's.
func TestDeallocateMoved(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.Batch = 4
		w.mustAcquire(1)
		w.end(1)
		eni := w.ENIs()[1]
		second, err := w.EC2.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-node"})
		must(w, err)
		w.byOperator(eni.ID)
		w.Operate("AttachNetworkInterface", "NetworkInterfaceId", eni.ID, "InstanceId", second.ID, "DeviceIndex", "1")
		gone, err := w.pool().Deallocate(w.Context(), eni.Addrs[2])
		if err == nil || !strings.Contains(err.Error(), "another instance may have this ENI") {
			w.Errorf("%v went back, %v", gone, err)
		}
		if is := w.ENI(eni.ID); !slices.Equal(is.Addrs, eni.Addrs) {
			w.Errorf("the ENI of the other node had %v, and has %v", eni.Addrs, is.Addrs)
		}
	})
}

// TestDeallocateThrottled: an operator releases addresses of two ENIs, and EC2 throttles the call about the first ENI.
// There is no call about the second ENI, and the named addresses stay free.
func TestDeallocateThrottled(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch = 0
	for n := range 11 {
		w.mustAcquire(n)
	}
	for n := range 11 {
		w.end(n)
	}
	var named []netip.Addr
	for _, e := range w.ENIs()[1:] {
		named = append(named, e.Addrs[2])
	}
	w.EC2.ResetCalls()
	w.EC2.Fail(book.UnassignAction, "RequestLimitExceeded", always)
	if gone, err := w.pool().Deallocate(t.Context(), named...); !errors.Is(err, aws.ErrThrottled) || len(gone) > 0 {
		t.Errorf("%v went back, %v", gone, err)
	}
	for _, c := range w.EC2.Calls() {
		if c.Action == book.UnassignAction && c.Params["NetworkInterfaceId"] != w.ENIs()[1].ID {
			t.Errorf("after EC2 has throttled, a further call: %v", c)
		}
	}
	for _, a := range named {
		if s := w.State(); !s.Free.Has(a) || len(s.Intents) > 0 {
			t.Errorf("%s: free %v, intents %v", a, s.Free.Has(a), s.Intents)
		}
	}
	w.consistent()
}

// hideNew makes EC2's describes lack unattached ENIs that were made for an instance, as EC2 may do for seconds.
func (w *world) hideNew() {
	w.answers(func(rw http.ResponseWriter, r *http.Request) {
		if r.FormValue("Action") == "DescribeNetworkInterfaces" && r.FormValue("Filter.1.Name") == "description" {
			io.WriteString(rw,
				`<DescribeNetworkInterfacesResponse><networkInterfaceSet/></DescribeNetworkInterfacesResponse>`)
			return
		}
		w.EC2.ServeHTTP(rw, r)
	})
}

// TestCreateOutcomes: whatever the outcome of a creation is, one ADD makes one ENI, even if EC2 does not show it yet.
func TestCreateOutcomes(t *testing.T) {
	type outcomes = []ec2sim.Outcome
	lost := ec2sim.DoneLost
	for name, script := range map[string]outcomes{
		"lost":                        {lost},
		"lost twice":                  {lost, lost, lost},
		"lost, then throttled":        {lost, busyEC2, busyEC2, busyEC2},
		"lost, then a fault":          {lost, ec2sim.Refused("InternalError")},
		"lost, then no room":          {lost, noRoom},
		"done, with a fault, no room": {ec2sim.DoneBut("InternalError"), noRoom},
		"throttled":                   {busyEC2, busyEC2, busyEC2},
		"no room":                     {noRoom},
	} {
		for _, hidden := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				w := newWorld(t, "m5.large", 20, 20)
				if hidden {
					w.hideNew()
				}
				w.EC2.Script("CreateNetworkInterface", script...)
				w.policy.Timeout = 20 * time.Second
				w.mustAcquire(1)
				if n := len(w.EC2.ENIs()); n != 2 {
					t.Errorf("%d ENIs, want the boot ENI and one: %v", n, w.EC2.Calls())
				}
				w.noneLeaked()
				w.consistent()
			})
		}
	}
}

// TestCreateAfterDeath: a process ends without EC2's answer. The next process makes the same call, although more pods,
// and other pods, wait by then.
func TestCreateAfterDeath(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 20)
	w.hideNew()
	w.policy.Timeout = time.Second
	w.EC2.Script("CreateNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.DoneLost}, 50)...)
	if _, err := w.acquire(1); err == nil {
		t.Fatal("no error")
	}
	w.EC2.Script("CreateNetworkInterface")
	w.policy.Timeout, w.policy.Batch = 10*time.Second, 4
	w.mustAcquire(2)
	if n := len(w.EC2.ENIs()); n != 2 {
		t.Errorf("%d ENIs, want the boot ENI and one", n)
	}
	w.noneLeaked()
}

// TestCreateRefusedAfterDeath: EC2 refuses the repetition of a creation. This does not prove that the first call made
// no ENI, but the node may ask for another ENI.
func TestCreateRefusedAfterDeath(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 20)
	w.policy.Timeout = time.Second
	w.EC2.Script("CreateNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
	for w.EC2.Asked("CreateNetworkInterface") == 0 { // on a busy machine, the time may end before the call
		if _, err := w.acquire(1); err == nil {
			t.Fatal("no error")
		}
	}
	w.EC2.Script("CreateNetworkInterface", noRoom)
	w.policy.Timeout = 10 * time.Second
	w.mustAcquire(2)
	w.noneLeaked()
	looked := false
	for _, i := range w.State().Intents {
		looked = looked || i.Action == "CreateNetworkInterface" && i.Subnet == ""
	}
	if n := len(w.EC2.ENIs()); n != 2 || !looked {
		t.Errorf("%d ENIs; intents %v, want one to look for what the first call has made", n, w.State().Intents)
	}
}

// TestStrayEndsCreation: the answer to a creation was lost. When EC2 shows the ENI, a growth attaches it, and does not
// repeat the creation for the next ENI.
func TestStrayEndsCreation(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Timeout = time.Second
	w.EC2.Script("CreateNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.DoneLost}, 50)...)
	func() {
		ec2 := w.cloud.EC2URL
		defer func() { w.cloud.EC2URL = ec2 }()
		w.hideNew()
		if _, err := w.acquire(1); err == nil {
			t.Fatal("no error")
		}
	}()
	w.EC2.Script("CreateNetworkInterface")
	w.policy.Timeout, w.policy.Batch = 10*time.Second, 10
	for n := range 20 {
		w.mustAcquire(n)
	}
	if n := len(w.EC2.ENIs()); n != 3 {
		t.Errorf("%d ENIs, want the boot ENI and two", n)
	}
	w.noneLeaked()
	w.consistent()
}

// TestStrangeCreation: EC2 answers a creation with the ID of an old ENI. No pod gets an address of this ENI.
func TestStrangeCreation(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 20)
	w.policy.Batch = 10
	for n := range 10 {
		w.mustAcquire(n)
	}
	known := w.EC2.ENIs()[1]
	next := known.ID[:len(known.ID)-1] + "3" // the ID that the next ENI will have
	w.lying("CreateNetworkInterface", next, known.ID)
	w.policy.Timeout = 2 * time.Second
	a, err := w.acquire(10)
	if err == nil {
		on := slices.IndexFunc(w.EC2.ENIs(), func(e ec2sim.ENI) bool { return slices.Contains(e.Addrs, a.Addrs[0]) })
		if on < 0 || w.EC2.ENIs()[on].Instance != w.ID {
			t.Errorf("%s is leased, and on no ENI of the node", a.Addrs[0])
		}
	}
	for _, c := range w.EC2.Calls() {
		if c.Action == "AttachNetworkInterface" && c.Params["NetworkInterfaceId"] == known.ID && c.Code != "" {
			t.Errorf("%v: it was taken for a new one", c)
		}
	}
	if e := w.State().ENIs[known.ID]; !slices.Equal(e.Addrs, known.Addrs) {
		t.Errorf("the registry has %v on %s, which has %v", e.Addrs, known.ID, known.Addrs)
	}
	w.consistent()
	w.noneElsewhere()
}

// TestCreateWithoutTags: the role may not create tags, so the node creates an ENI without tags. The call without tags
// has a client token of its own. When its answer is lost, the repeated call has the same token.
func TestCreateWithoutTags(t *testing.T) {
	c := podSubnets(24)
	c.Denied = []string{"CreateTags"}
	w := buildWorld(t, "m5.large", c)
	w.hideNew()
	w.policy.Timeout = 20 * time.Second
	w.EC2.Script("CreateNetworkInterface", ec2sim.Answered, ec2sim.DoneLost, busyEC2)
	w.mustAcquire(1)
	tokens := map[bool]map[string]bool{false: {}, true: {}} // with tags, and without
	for _, c := range w.EC2.Calls() {
		if c.Action == "CreateNetworkInterface" {
			tokens[c.Params["TagSpecification.1.ResourceType"] == ""][c.Params["ClientToken"]] = true
		}
	}
	for token := range tokens[true] {
		if tokens[false][token] || len(tokens[true]) != 1 {
			t.Errorf("tokens with tags %v, and without %v", tokens[false], tokens[true])
		}
	}
	if n := len(w.EC2.ENIs()); n != 2 {
		t.Errorf("%d ENIs, want the boot ENI and one", n)
	}
	w.consistent()
}

// TestProvisionAgain: new-interface gets no answer about its ENI, and an operator runs new-interface again. There is
// one ENI.
func TestProvisionAgain(t *testing.T) {
	spec := forNode
	spec.SecurityGroups = []string{"sg-2", "sg-1"}
	for _, action := range []string{"CreateNetworkInterface", "AttachNetworkInterface"} {
		for _, outcome := range []ec2sim.Outcome{ec2sim.DoneLost, ec2sim.UndoneLost} {
			t.Run(action, func(t *testing.T) {
				inBubble(t, "m5.large", func(w *world, _ *wires) {
					w.unanswered(spec, action, outcome)
					id := w.mustProvision(spec)
					if all := w.EC2.ENIs(); len(all) != 2 || all[1].ID != id || len(all[1].Addrs) != 3 {
						w.Errorf("answered %s, and there are %+v", id, all)
					}
					w.noneLeaked()
					if another := w.mustProvision(spec); another == id { // the next run creates another ENI
						w.Errorf("%s again", another)
					}
					w.consistent()
				})
			})
		}
	}
}

// TestProvisionWithoutAnswer: new-interface is killed, and the registry has its ENI. Either new-interface was waiting
// for the link, or an ADD has made the remaining calls about the ENI. If an operator runs new-interface again, there is
// one ENI.
func TestProvisionWithoutAnswer(t *testing.T) {
	again := func(w *world) {
		w.Helper()
		id := w.mustProvision(forNode)
		if all := w.EC2.ENIs(); len(all) != 2 || all[1].ID != id {
			w.Errorf("answered %s, and there are %+v", id, all)
		}
		if another := w.mustProvision(forNode); another == id {
			w.Errorf("after an answer, %s again", another)
		}
	}
	t.Run("no link", func(t *testing.T) {
		inBubble(t, "m5.large", func(w *world, _ *wires) {
			w.noLink(forNode)
			again(w)
		})
	})
	for _, outcome := range []ec2sim.Outcome{ec2sim.DoneLost, ec2sim.UndoneLost} {
		t.Run("an ADD", func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.unanswered(forNode, "AttachNetworkInterface", outcome)
				w.mustAcquire(1)
				again(w)
				w.consistent()
			})
		})
	}
}

// TestProvisionBetween: new-interface is killed between the creation and the attachment of its ENI. Before an operator
// runs new-interface again, a collection runs, or an ADD comes whose pod must not get an address of this ENI. In the
// end, there is one ENI.
func TestProvisionBetween(t *testing.T) {
	for name, between := range map[string]func(*world){
		"collection": func(w *world) { w.collect() },
		"ADD": func(w *world) {
			w.policy.Provision = lease.ProvisionAssign
			if _, err := w.acquire(1); err == nil {
				w.Error("a pod has an address, and there is no ENI for it")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.notAttached(forNode)
				between(w)
				id := w.mustProvision(forNode)
				if all := w.EC2.ENIs(); len(all) != 2 || all[1].ID != id {
					w.Errorf("answered %s, and there are %d ENIs", id, len(all))
				}
				w.noneLeaked()
				w.consistent()
			})
		})
	}
}

// notGrown is an ADD that has created an ENI, and ends before EC2 attaches the ENI.
func (w *world) notGrown() {
	w.Helper()
	w.EC2.Script(book.AttachAction, slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
	defer w.EC2.Script(book.AttachAction)
	brief, cancel := context.WithTimeout(w.Context(), 2*time.Second)
	defer cancel()
	if _, err := w.pool().Acquire(brief, pod(1)); err == nil {
		w.Fatal("no error")
	}
}

// TestGrowthBetween: an ADD is killed between the creation and the attachment of its ENI, or before it sets
// DeleteOnTermination. Before the next ADD of its network, a collection runs, a pod of another network comes, or the
// node boots. Not all of these may finish the ENI, but the next ADD does.
func TestGrowthBetween(t *testing.T) {
	killed := map[string]func(*world){
		"created": (*world).notGrown,
		"attached": func(w *world) {
			w.EC2.Script(book.ModifyAction, slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
			defer w.EC2.Script(book.ModifyAction)
			w.mustAcquire(1)
		},
	}
	between := map[string]func(*world, lease.Provision){
		"collections": func(w *world, provision lease.Provision) {
			for range 2 {
				w.collectBoth(provision)
				time.Sleep(5 * time.Minute)
			}
		},
		"boot": func(w *world, provision lease.Provision) {
			w.Lose()
			must(w, w.pool().Learn(w.Context()))
			for range 2 {
				w.collectBoth(provision)
				time.Sleep(5 * time.Minute)
			}
		},
		"ADD": func(w *world, provision lease.Provision) {
			full := w.policy
			defer func() { w.policy = full }()
			w.policy = w.another(provision)
			_, _ = w.acquire(2) // the ADD may find an address
		},
	}
	every := []lease.Provision{lease.ProvisionFull, lease.ProvisionAssign, lease.ProvisionNone}
	for was, kill := range killed {
		for comes, come := range between {
			for _, provision := range every {
				t.Run(was+"/"+comes+"/"+string(provision), func(t *testing.T) {
					inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
						kill(w)
						time.Sleep(10 * time.Second)
						come(w, provision)
						w.policy.Batch = 20 // more addresses than one ENI can have
						w.mustAcquire(3)
						time.Sleep(time.Minute)
						w.mustAcquire(4)
						for _, e := range w.EC2.ENIs() {
							if e.Status == "available" || !e.DeleteOnTermination {
								w.Errorf("%s is %s, and ends with the instance: %v", e.ID, e.Status,
									e.DeleteOnTermination)
							}
						}
						w.noneLeaked()
						w.consistent()
					})
				})
			}
		}
	}
}

// TestProvisionDetached: new-interface has answered. An operator detaches the ENI, and a growth attaches it again. The
// next new-interface does not answer with this ENI.
func TestProvisionDetached(t *testing.T) {
	inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
		id, _, err := w.pool().Provision(w.Context(), forNode)
		must(w, err)
		for n := range 3 {
			w.mustAcquire(n)
		}
		mac := w.ENI(id).MAC
		w.byOperator(id)
		// The kernel has not removed the link yet.
		link := nl.Veth{Name: "vpclate", Peer: "enslate", PeerMAC: mac, PeerNS: w.Host}
		must(w, link.Add(w.Host))
		w.EC2.OnChange(func(c ec2sim.Change) {
			if c.Kind == ec2sim.Attached && c.ENI.ID == id {
				must(w, link.Del(w.Host))
			}
		})
		w.Edit(func(s *registry.State) {
			s.Intents["token"] = registry.Intent{Action: book.AttachAction, ENI: "eni-00000000000000099",
				Since: time.Now()}
		})
		w.mustAcquire(3) // the node asks EC2 what has become of another call
		if e := w.ENI(id); e.Instance == "" {
			w.Fatalf("%s was not attached again", id)
		}
		if another, _, err := w.pool().Provision(w.Context(), forNode); err != nil || another == id {
			w.Errorf("after an answer, %s again: %v", another, err)
		}
		w.consistent()
	})
}

// TestProvisionOther: new-interface does not answer with an unfinished ENI that has other security groups.
func TestProvisionOther(t *testing.T) {
	inBubble(t, "m5.xlarge", func(w *world, _ *wires) {
		w.unanswered(more.ENISpec{SecurityGroups: []string{"sg-1"}, MinIndex: 1}, "AttachNetworkInterface",
			ec2sim.DoneLost)
		id := w.mustProvision(more.ENISpec{SecurityGroups: []string{"sg-2"}, MinIndex: 1})
		if all := w.EC2.ENIs(); len(all) != 3 || all[2].ID != id {
			w.Errorf("answered %s, and there are %+v", id, all)
		}
	})
}

// TestCreateSmaller: no subnet has as many addresses as the node wants, because other nodes have taken them, or because
// these addresses are reserved for prefixes. An ENI with one address serves a pod.
func TestCreateSmaller(t *testing.T) {
	w := newWorld(t, "m5.large", 20, 20)
	w.policy.Batch = 4
	w.EC2.Script("CreateNetworkInterface", noRoom, noRoom)
	w.mustAcquire(1)
	if all := w.EC2.ENIs(); len(all) != 2 || len(all[1].Addrs) != 1 {
		t.Errorf("%+v", all)
	}
	w.consistent()

	w = newWorld(t, "m5.large", 20, 20)
	w.policy.Batch = 4
	w.EC2.Script("CreateNetworkInterface", noRoom)
	w.mustAcquire(1)
	if all := w.EC2.ENIs(); len(all) != 2 || len(all[1].Addrs) != 4 {
		t.Errorf("the other subnet has room: %+v", all)
	}
}

// TestProvisionAfterAdd: a command of the tool does not know interfaceIndex, so it attaches no ENI that an ADD has left
// unattached.
func TestProvisionAfterAdd(t *testing.T) {
	for name, command := range map[string]func(*Pool) error{
		"allocate": func(p *Pool) error { _, _, err := p.Allocate(t.Context(), 1); return err },
		"provision": func(p *Pool) error {
			_, _, err := p.Provision(t.Context(), more.ENISpec{SecurityGroups: []string{"sg-1"}, MinIndex: 2})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "m5.xlarge", 20)
			w.policy.MinIndex, w.policy.Timeout = 2, time.Second
			w.EC2.Script("AttachNetworkInterface", slices.Repeat([]ec2sim.Outcome{ec2sim.UndoneLost}, 50)...)
			if _, err := w.acquire(1); err == nil {
				t.Fatal("no error")
			}
			w.EC2.Script("AttachNetworkInterface")
			p := w.pool()
			p.Policy = lease.Policy{}
			must(t, command(p))
			w.policy.Timeout = time.Minute
			w.mustAcquire(2)
			for _, e := range w.EC2.ENIs()[1:] {
				if e.Index < 2 {
					t.Errorf("%s is at device index %d", e.ID, e.Index)
				}
			}
			w.noneLeaked()
			w.consistent()
		})
	}
}
