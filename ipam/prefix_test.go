// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/less"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

const hour = time.Hour

// attachForeign attaches an ENI with four addresses, which the plugins have not created.
func (w *world) attachForeign(tags map[string]string) string {
	w.Helper()
	return w.attachOther(aws.ENISpec{Subnet: "subnet-node", Tags: tags})
}

// TestPrefixesChosen: an ENI of this type can have two addresses or prefixes. The second is the address that the pod
// has chosen, and not a prefix.
func TestPrefixesChosen(t *testing.T) {
	c := podSubnets(20)
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "t3.micro", ENIs: 2, IPv4PerENI: 2, IPv6PerENI: 2}}
	w := buildWorld(t, "t3.micro", c)
	w.policy.Prefixes, w.policy.Choice = true, lease.Choice{Addrs: []netip.Addr{netip.MustParseAddr("100.77.0.200")}}
	if a, err := w.acquire(1); err != nil || !slices.Equal(a.Addrs, w.policy.Choice.Addrs) {
		t.Errorf("the pod has %v: %v", a.Addrs, err)
	}
}

// TestPrefixes: one call gets the addresses of sixteen pods.
func TestPrefixes(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Prefixes = true
	got := map[netip.Addr]bool{}
	for n := range 17 { // the primary address, and a prefix
		got[w.mustAcquire(n)] = true
	}
	w.wantWrites(oneENI)
	if len(got) != 17 {
		t.Errorf("%d distinct addresses", len(got))
	}
	got[w.mustAcquire(17)] = true
	w.wantWrites(map[string]int{"AssignPrivateIpAddresses": 1})
	w.consistent()

	// A collection releases a prefix only when all addresses of the prefix have been free for FreeAfter.
	second := w.State().Held(pod(17).Key)[0]
	for n := range 17 {
		w.end(n)
	}
	w.Age(hour)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	done, err := w.pool().Collect(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	eni := w.EC2.ENIs()[1]
	if len(done.Returned) != 1 || done.Returned[0].Contains(second) || len(eni.Prefixes) != 1 ||
		!eni.Prefixes[0].Contains(second) {
		t.Errorf("returned %v, ENI has %v, a pod %s", done.Returned, eni.Prefixes, second)
	}
	w.consistent()
}

// TestPrefixesWithoutBatch: with ipBatchSize 0, one call asks for as many prefixes as the ENI has room for.
func TestPrefixesWithoutBatch(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Prefixes, w.policy.Batch, w.policy.Warm = true, 0, registry.Warm{Min: 64}
	w.mustAcquire(1)
	w.wantWrites(oneENI)
	if n := len(w.EC2.ENIs()[1].Prefixes); n != 9 {
		t.Errorf("the new ENI has %d prefixes, and room for 9", n)
	}
}

// TestPrefixFallback: a subnet without a free /28 still gives single addresses.
func TestPrefixFallback(t *testing.T) {
	w := newWorld(t, "m5.large", 28) // a /28 with five reserved addresses has no free /28 in it
	w.policy.Prefixes = true
	for n := range 11 {
		w.mustAcquire(n)
	}
	if _, err := w.acquire(11); !errors.Is(err, aws.ErrSubnetFull) {
		t.Errorf("twelfth pod: %v", err)
	}
	w.consistent()
}

// TestFullestPrefix: pods first get addresses of the prefix with the most pods.
func TestFullestPrefix(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Prefixes = true
	for n := range 33 {
		w.mustAcquire(n)
	}
	first := w.State().ENIs[w.EC2.ENIs()[1].ID].Prefixes[0].CIDR
	for n := range 33 { // leaves 4 pods in the first prefix, 3 in the second
		a := w.State().Held(pod(n).Key)[0]
		keep := first.Contains(a) && n < 4 || !first.Contains(a) && n > 29
		if !keep {
			w.end(n)
		}
	}
	w.Age(hour)
	w.EC2.ResetCalls()
	for n := 100; n < 112; n++ {
		if a := w.mustAcquire(n); !first.Contains(a) {
			t.Errorf("pod %d has %s, want one of %s", n, a, first)
		}
	}
	w.wantWrites(map[string]int{})
}

// TestDualStack: the call that creates an ENI also gets addresses of both families for the ENI. Each pod has an IPv4
// and an IPv6 address of the same ENI.
func TestDualStack(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families = []lease.Family{lease.IPv4, lease.IPv6}
	seen := map[netip.Addr]bool{}
	for n := range 10 {
		a, err := w.acquire(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Addrs) != 2 || !a.Addrs[0].Is4() || !a.Addrs[1].Is6() || !a.ENI.CIDR6.Contains(a.Addrs[1]) ||
			seen[a.Addrs[0]] || seen[a.Addrs[1]] {
			t.Errorf("pod %d has %v on %+v", n, a.Addrs, a.ENI)
		}
		seen[a.Addrs[0]], seen[a.Addrs[1]] = true, true
	}
	writes := w.writes()
	if writes["CreateNetworkInterface"] != 1 || writes["AssignIpv6Addresses"] != 0 {
		t.Errorf("EC2 was asked for %v", writes)
	}
	w.consistent()
	for n := range 10 {
		w.end(n)
	}
	w.Age(hour)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	if done, err := w.pool().Collect(t.Context(), c); err != nil || len(done.Deleted) != 1 {
		t.Errorf("collected %+v: %v", c, err)
	}
	w.consistent()
}

// TestDualStackLostRegistry: the registry is lost while dual-stack pods run. The pods keep both addresses.
func TestDualStackLostRegistry(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families = []lease.Family{lease.IPv4, lease.IPv6}
	a, err := w.acquire(1)
	if err != nil {
		t.Fatal(err)
	}
	w.runPod(a.Addrs...)
	w.Lose()
	b, err := w.acquire(2)
	if err != nil {
		t.Fatal(err)
	}
	s := w.State()
	for _, own := range a.Addrs {
		if l, ok := s.Leases.At(own); !ok || own == b.Addrs[0] || own == b.Addrs[1] {
			t.Errorf("%s of the running pod: lease %+v, new pod has %v", own, l, b.Addrs)
		}
	}
}

func TestIPv6Only(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families = []lease.Family{lease.IPv6}
	a, err := w.acquire(1)
	if err != nil || len(a.Addrs) != 1 || !a.Addrs[0].Is6() {
		t.Fatalf("%v: %v", a.Addrs, err)
	}
	w.EC2.ResetCalls()
	for n := range 50 {
		if _, err := w.acquire(n + 2); err != nil {
			t.Fatal(err)
		}
	}
	w.wantWrites(map[string]int{})
}

// TestWarmIPv6Only: the tool's command warm counts only the addresses that the pool's pods can get. A /80 has enough
// addresses, and the ENI's IPv4 addresses do not count.
func TestWarmIPv6Only(t *testing.T) {
	w := newWorld6(t, "m5.large")
	w.policy.Families, w.policy.Warm = []lease.Family{lease.IPv6}, registry.Warm{Min: 3}
	if has, err := w.pool().Fill(t.Context()); err != nil || has < 1<<20 {
		t.Errorf("%d addresses are free, and 3 are wanted: %v", has, err)
	}
	w.wantWrites(oneENI)
}

// TestWarmPool: when ADDs have left fewer free addresses than warm.min, there is a mark, and Fill gets addresses for
// the pool. A collection keeps up to warm.max free addresses.
func TestWarmPool(t *testing.T) {
	for _, warm := range []registry.Warm{{Min: 4}, {Min: 4, Max: 6}} {
		t.Run(fmt.Sprint(warm), func(t *testing.T) { warmPool(t, warm) })
	}
}

func warmPool(t *testing.T, warm registry.Warm) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Warm = warm
	w.mustAcquire(1)
	if n, err := w.pool().Fill(t.Context()); err != nil || n < 4 {
		t.Errorf("filled to %d: %v", n, err)
	}
	w.EC2.ResetCalls()
	for n := 2; n < 6; n++ {
		w.mustAcquire(n)
	}
	w.wantWrites(map[string]int{})
	if _, err := os.Stat(w.Dir + "/" + lease.Refill); err != nil {
		t.Errorf("no mark: %v", err)
	}
	if _, err := w.pool().Fill(t.Context()); err != nil {
		t.Error(err)
	}
	for n := 1; n < 6; n++ {
		w.end(n)
	}
	w.Age(hour)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	if _, err := w.pool().Collect(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if left := w.State().Free.Len(); left != warm.Left() {
		t.Errorf("%d addresses are left free, want %d: %+v", left, warm.Left(), c)
	}
}

// TestMaxPods: the node asks for no more addresses than maxPods pods need.
func TestMaxPods(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Batch, w.policy.MaxPods = 8, 3
	for n := range 3 {
		w.mustAcquire(n)
	}
	if n := len(w.EC2.ENIs()[1].Addrs); n != 3 {
		t.Errorf("the ENI has %d addresses for 3 pods", n)
	}
}

// TestWarmMaxPods: the node keeps no address ready for more pods than maxPods allows.
func TestWarmMaxPods(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Warm, w.policy.MaxPods = registry.Warm{Min: 8}, 3
	for pods, want := range []int{3, 2, 1, 0} {
		if n, err := w.pool().Fill(t.Context()); err != nil || n != want {
			t.Errorf("with %d pods: filled to %d, want %d: %v", pods, n, want, err)
		}
		if pods < w.policy.MaxPods {
			w.mustAcquire(pods)
		}
	}
	if n := len(w.EC2.ENIs()[1].Addrs); n != 3 {
		t.Errorf("the ENI has %d addresses for 3 pods", n)
	}
}

// TestIPv6OnlySubnet: in a subnet without IPv4, an ENI has no primary address.
func TestIPv6OnlySubnet(t *testing.T) {
	w := buildWorld(t, "m5.large", ec2sim.World(`
		vpc-1       10.177.0.0/16 2001:db8:77::/56
		subnet-node 10.177.0.0/24
		subnet-pod0 2001:db8:77:2::/64 kubernetes_kubelet=true`))
	w.policy.Families = []lease.Family{lease.IPv6}
	a, err := w.acquire(1)
	if err != nil || len(a.Addrs) != 1 || !a.ENI.CIDR6.Contains(a.Addrs[0]) || a.ENI.CIDR.IsValid() ||
		a.ENI.Primary().IsValid() {
		t.Fatalf("%+v: %v", a, err)
	}
	r := a.Result("eth1", w.policy)
	if len(r.IPs) != 1 || r.IPs[0].Gateway.String() != "fe80:ec2::1" {
		t.Errorf("result %+v", r.IPs)
	}
	w.end(1)
	w.Age(hour)
	c := less.Collection{FreeAfter: time.Minute, Max: -1}
	if done, err := w.pool().Collect(t.Context(), c); err != nil || len(done.Deleted) != 1 {
		t.Errorf("collected %+v: %v", c, err)
	}
	w.consistent()
}

// TestNewPrefixIsNotIdle: a collection does not release a prefix of a new ENI before the prefix has been free for
// FreeAfter.
func TestNewPrefixIsNotIdle(t *testing.T) {
	w := newWorld(t, "m5.large", 20)
	w.policy.Prefixes, w.policy.Batch = true, 2*book.BlockSize+1
	w.mustAcquire(1)
	c := less.Collection{FreeAfter: 15 * time.Minute, Max: -1}
	done := must1(w.pool().Collect(t.Context(), c))(t)
	if len(done.Returned) > 0 {
		t.Errorf("%v went back", done.Returned)
	}
	w.Age(15 * time.Minute)
	done = must1(w.pool().Collect(t.Context(), c))(t)
	if len(done.Returned) == 0 {
		t.Error("none ever goes back")
	}
}

// TestFewerPrefixes: the node wants three /28, and the subnet has two. EC2 gives all or nothing, so the node then asks
// for one.
func TestFewerPrefixes(t *testing.T) {
	for _, name := range []string{"a new ENI", "an ENI that is there"} {
		w := newWorld(t, "m5.large", 26)
		if name != "a new ENI" {
			w.mustAcquire(0)
		}
		w.policy.Prefixes, w.policy.Warm = true, registry.Warm{Min: 40}
		w.mustAcquire(1)
		for id, e := range w.State().ENIs {
			if e.Index > 0 && len(e.Prefixes) == 0 {
				t.Errorf("%s: %s has %d addresses and no prefix", name, id, len(e.Addrs))
			}
		}
	}
}

// TestPrefixBase: an ENI has lost a prefix, but a running pod has the first address of this prefix as a single address.
// This address does not prove that the ENI still has the other addresses of the prefix.
func TestPrefixBase(t *testing.T) {
	for name, loses := range map[string]func(*world, string, netip.Prefix){
		"metadata shows the prefix": func(w *world, eni string, p netip.Prefix) {
			w.Lie(ec2sim.FreezeENI(eni))
			w.collect()
			w.policy.Choice.Addrs = []netip.Addr{p.Addr()}
			w.runPod(w.mustAcquire(20))
			w.policy.Choice = lease.Choice{}
			must(w, w.pool().Learn(w.Context()))
		},
		"an operator has unassigned it": func(w *world, eni string, p netip.Prefix) {
			must(w, w.byHand().UnassignPrefixes(w.Context(), eni, p))
			must(w, w.byHand().AssignAddr(w.Context(), eni, p.Addr()))
			w.runPod(p.Addr())
			w.collect()
		},
		"the registry is lost, and EC2 does not answer": func(w *world, eni string, p netip.Prefix) {
			w.Lie(ec2sim.FreezeENI(eni))
			must(w, w.byHand().UnassignPrefixes(w.Context(), eni, p))
			must(w, w.byHand().AssignAddr(w.Context(), eni, p.Addr()))
			w.runPod(p.Addr())
			w.Lose()
			w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", always)
			must(w, w.pool().Learn(w.Context()))
			w.EC2.Fail("DescribeNetworkInterfaces", "InternalError", 0)
			time.Sleep(time.Minute)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, "m5.large", func(w *world, _ *wires) {
				w.policy.Prefixes, w.policy.Batch, w.policy.ReuseWait = true, 20, 0
				for n := range book.BlockSize {
					w.mustAcquire(n)
				}
				time.Sleep(2 * time.Hour)
				eni := w.ENIs()[1]
				p := eni.Prefixes[1] // no pod has an address of this prefix
				loses(w, eni.ID, p)
				for n := range 3 {
					if a := w.mustAcquire(30 + n); p.Contains(a) {
						w.Errorf("a pod has %s, and the ENI has only %s of %s", a, p.Addr(), p)
					}
				}
				if w.ENI(eni.ID).Addrs[1] != p.Addr() {
					w.Errorf("the ENI has %v", w.ENI(eni.ID).Addrs)
				}
				w.noneElsewhere()
				w.consistent()
			})
		})
	}
}
