// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// capacityTypes are instance types that are small enough to be filled.
var capacityTypes = []ec2sim.InstanceType{
	{Name: "t9.xen", ENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Xen: true},
	{Name: "t9.narrow", ENIs: 3, IPv4PerENI: 6, IPv6PerENI: 2, Xen: true},
	{Name: "t9.old", ENIs: 3, IPv4PerENI: 4},
	{Name: "t9.cards", ENIs: 9, IPv4PerENI: 4, IPv6PerENI: 4, Cards: []int{3, 3, 3}},
	{Name: "t9.efa", ENIs: 6, IPv4PerENI: 4, IPv6PerENI: 4, Cards: []int{3, 0, 3}},
	{Name: "t9.uneven", ENIs: 5, IPv4PerENI: 3, IPv6PerENI: 3, Cards: []int{1, 4}},
}

// inCapacity calls f with a node of this instance type, in a VPC with both families, and with the pools of the
// configuration.
func inCapacity(t *testing.T, instanceType string, config lease.Config, f func(w *world, pools []lease.Policy)) {
	t.Helper()
	config.SecGroupIDs, config.SubnetTags = []string{}, map[string]string{"for": "pods"}
	must(t, config.Validate())
	dualStack := func(c *ec2sim.Config) {
		c.InstanceTypes = capacityTypes
		c.VPCs[0].IPv6CIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8:77::/56")}
		for i := range c.Subnets {
			c.Subnets[i].IPv6CIDR = netip.MustParsePrefix(fmt.Sprintf("2001:db8:77:%d::/64", i))
		}
		// The node has an IPv6 address of its own if pods get IPv6. Instances of the type t9.old cannot have IPv6.
		c.Subnets[0].AssignIPv6 = slices.Contains(config.IPFamilies, "IPv6") && instanceType != "t9.old"
	}
	inBubbleOf(t, instanceType, dualStack, func(w *world, _ *wires) { f(w, config.Policies()) })
}

// counted returns the result of more.Pods for a newly launched node of this type. The argument except is the number of
// ENIs for pods that ask for ENIs of their own.
func (w *world) counted(pools []lease.Policy, except int) int {
	w.Helper()
	l, err := aws.New(w.cloud).Limits(w.Context(), w.Type)
	must(w, err)
	return more.Pods(more.Launched(l, pools[0].Families), pools, except)
}

// started starts pods until an ADD gets no address. The argument most limits the number of pods. started returns the
// number of running pods. The function pool returns the pool of the pod n.
func (w *world) started(most int, pool func(n int) lease.Policy) int {
	w.Helper()
	for n := range most {
		w.policy = pool(n)
		_, err := w.acquire(n)
		if err == nil {
			continue
		}
		if e, ok := errors.AsType[*plugin.Error](err); !ok || e.Code != plugin.CodeTryAgain {
			w.Errorf("pod %d: %v", n, err)
		}
		return n
	}
	return most
}

// TestCapacity compares the number of pods that more.Pods expects with the number of pods that a node can start.
func TestCapacity(t *testing.T) {
	prefixes := lease.PoolConfig{PrefixDelegation: new(true)}
	both, six := []string{"IPv4", "IPv6"}, []string{"IPv6"}
	for _, test := range []struct {
		kind   string
		config lease.Config
		want   int
	}{
		{"c5.large", lease.Config{InterfaceIndex: 1}, 20},
		{"c5.large", lease.Config{InterfaceIndex: 0}, 29},
		{"c5.large", lease.Config{InterfaceIndex: 2}, 20}, // with one card, EC2 accepts any device index
		{"c5.large", lease.Config{InterfaceIndex: 1, MaxENIs: 2}, 10},
		{"c5.large", lease.Config{InterfaceIndex: 1, MaxENIs: 1}, 0},
		{"c5.large", lease.Config{InterfaceIndex: 0, MaxENIs: 1}, 9},
		{"c5.large", lease.Config{InterfaceIndex: 1, MaxENIs: 9}, 20},
		{"c5.large", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes}, 290},
		{"c5.large", lease.Config{InterfaceIndex: 0, PoolConfig: prefixes}, 434},
		{"c5.large", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes, IPFamilies: both}, 290},
		{"c5.large", lease.Config{InterfaceIndex: 0, IPFamilies: both}, 29},
		{"t3.small", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes, MaxENIs: 2}, 49},
		{"t9.xen", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes}, 8},
		{"t9.xen", lease.Config{InterfaceIndex: 0, IPFamilies: both}, 11},
		{"t9.xen", lease.Config{InterfaceIndex: 1, IPFamilies: six}, 8},
		{"t9.xen", lease.Config{InterfaceIndex: 0, IPFamilies: six}, 11},
		{"t9.narrow", lease.Config{InterfaceIndex: 1, IPFamilies: both}, 4},
		{"t9.narrow", lease.Config{InterfaceIndex: 0, IPFamilies: both}, 5},
		{"t9.old", lease.Config{InterfaceIndex: 1, IPFamilies: both}, 0}, // the type has no IPv6
		{"t9.cards", lease.Config{InterfaceIndex: 1}, 24},
		{"t9.cards", lease.Config{InterfaceIndex: 2}, 12},
		{"t9.cards", lease.Config{InterfaceIndex: 3}, 0},
		{"t9.cards", lease.Config{InterfaceIndex: 0, MaxENIs: 4}, 15},
		{"t9.efa", lease.Config{InterfaceIndex: 1}, 16},
		{"t9.uneven", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes}, 99},
	} {
		name := fmt.Sprintf("%s index %d ENIs %d prefixes %v %v", test.kind, test.config.InterfaceIndex,
			test.config.MaxENIs, test.config.PrefixDelegation != nil, test.config.IPFamilies)
		t.Run(name, func(t *testing.T) {
			inCapacity(t, test.kind, test.config, func(w *world, pools []lease.Policy) {
				counted := w.counted(pools, 0)
				got := w.started(test.want+2, func(int) lease.Policy { return pools[0] })
				if counted != test.want || got != test.want {
					w.Errorf("%d pods are counted, and %d start, want %d", counted, got, test.want)
				}
				w.consistent()
			})
		})
	}
}

// TestCapacityOfIPv6: pods with only IPv6 get addresses of a /80, which does not limit the number of pods.
func TestCapacityOfIPv6(t *testing.T) {
	inCapacity(t, "c5.large", lease.Config{InterfaceIndex: 1, IPFamilies: []string{"IPv6"}},
		func(w *world, pools []lease.Policy) {
			const many = 200
			got := w.started(many, func(int) lease.Policy { return pools[0] })
			if n := w.counted(pools, 0); n < lease.Plenty || got < many {
				w.Errorf("%d pods are counted, and %d start", n, got)
			}
		})
}

// poolsOf returns a configuration with further pools. The arguments base (for the pool "default") and further say which
// pools use prefixes.
func poolsOf(index int, base bool, further ...bool) lease.Config {
	c := lease.Config{InterfaceIndex: index, Pools: map[string]lease.PoolConfig{},
		PoolConfig: lease.PoolConfig{PrefixDelegation: &base}}
	for i, prefixes := range further {
		c.Pools[fmt.Sprint("p", i)] = lease.PoolConfig{PrefixDelegation: &prefixes,
			Namespaces: []string{fmt.Sprint("n", i)}}
	}
	return c
}

// TestCapacityOfPools: if the pods' pools come in the worst order, exactly as many pods start as more.Pods expects. If
// the pools come in a random order, at least as many pods start.
func TestCapacityOfPools(t *testing.T) {
	for _, test := range []struct {
		kind   string
		config lease.Config
		worst  []int // the pools of the first pods, as indexes; all further pods are in the last of these pools
		want   int
	}{
		{"t3.medium", poolsOf(1, false, false), []int{0, 1}, 7},
		{"m5.xlarge", poolsOf(1, false, false), []int{0, 1}, 31},
		{"m5.xlarge", poolsOf(1, false, false, false), []int{0, 1, 2}, 17},
		{"m5.xlarge", poolsOf(1, false, false, false, false, false), []int{0, 1, 2, 3}, 3},
		{"t3.small", poolsOf(1, true, false), []int{0, 1}, 5},
		{"t3.small", poolsOf(0, false, false), []int{1}, 8},
		{"t3.small", poolsOf(0, false, false, false), []int{1, 2}, 5},
	} {
		t.Run(fmt.Sprint(test.kind, test.config.InterfaceIndex, len(test.config.Pools)), func(t *testing.T) {
			inCapacity(t, test.kind, test.config, func(w *world, pools []lease.Policy) {
				counted := w.counted(pools, 0)
				got := w.started(10*test.want, func(n int) lease.Policy {
					return pools[test.worst[min(n, len(test.worst)-1)]]
				})
				if counted != test.want || got != test.want {
					w.Errorf("%d pods are counted, and %d start, want %d", counted, got, test.want)
				}
			})
			for seed := range uint64(4) {
				inCapacity(t, test.kind, test.config, func(w *world, pools []lease.Policy) {
					rng := rand.New(rand.NewPCG(seed, 1))
					weights := []int{0, 1, 1, 1, 5}[:len(pools)]
					rng.Shuffle(len(weights), func(i, j int) { weights[i], weights[j] = weights[j], weights[i] })
					var draw []lease.Policy
					for i, p := range pools {
						draw = append(draw, slices.Repeat([]lease.Policy{p}, 1+weights[i])...)
					}
					got := w.started(test.want, func(int) lease.Policy { return draw[rng.IntN(len(draw))] })
					if got != test.want {
						w.Errorf("seed %d: %d pods start, want %d", seed, got, test.want)
					}
				})
			}
		})
	}
}

// TestCapacityBesideRequests: a pod has a whole ENI. The number from more.Pods is right for the other pods.
func TestCapacityBesideRequests(t *testing.T) {
	config := lease.Config{InterfaceIndex: 1,
		Permissions: []lease.Permission{{Namespaces: []string{"*"}, Exclusive: true}}}
	inCapacity(t, "c5.large", config, func(w *world, pools []lease.Policy) {
		counted := w.counted(pools, 1)
		w.policy = pools[0]
		alone := pools[0]
		alone.Pool, alone.Choice.Exclusive = "default/exclusive", true
		got := w.started(30, func(n int) lease.Policy {
			if n == 0 {
				return alone
			}
			return pools[0]
		})
		if got--; counted != 10 || got != counted {
			w.Errorf("%d pods are counted, and %d start beside the one with an ENI", counted, got)
		}
	})
}

// TestCapacityProvisioned: with "provision" "none" or "assign", more.Pods counts only the attached ENIs.
func TestCapacityProvisioned(t *testing.T) {
	for provision, want := range map[string]int{"none": 4 + 1, "assign": 15 + 15} {
		t.Run(provision, func(t *testing.T) {
			inCapacity(t, "m5.xlarge", lease.Config{InterfaceIndex: 1, Provision: provision},
				func(w *world, pools []lease.Policy) {
					for index, secondary := range []int{3, 0} {
						e := w.given(aws.ENISpec{Subnet: "subnet-pod0", Secondary: secondary})
						_, err := w.byHand().AttachENI(w.Context(), e.ID, w.ID, 0, 1+index)
						must(w, err)
					}
					w.policy = pools[0]
					must1(w.pool().DescribeInstance(w.Context()))(w)
					counted := more.Pods(w.State(), pools, 0)
					got := w.started(want+2, func(int) lease.Policy { return pools[0] })
					if counted != want || got != want {
						w.Errorf("%d pods are counted, and %d start, want %d", counted, got, want)
					}
				})
		})
	}
}
