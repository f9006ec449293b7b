// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// inSubnets calls f with a node whose pods have subnets with these CIDRs.
func inSubnets(
	t *testing.T, instanceType string, config lease.Config, f func(w *world, p lease.Policy), cidrs ...string,
) {
	t.Helper()
	config.SecGroupIDs, config.SubnetTags = []string{}, map[string]string{"for": "pods"}
	must(t, config.Validate())
	narrow := func(c *ec2sim.Config) {
		c.InstanceTypes = capacityTypes
		for i, cidr := range cidrs {
			if i > 0 {
				c.Subnets = append(c.Subnets, c.Subnets[1])
				c.Subnets[1+i].ID = fmt.Sprint("subnet-pod", i)
			}
			c.Subnets[1+i].CIDR = netip.MustParsePrefix(cidr)
		}
	}
	inBubbleOf(t, instanceType, narrow, func(w *world, _ *wires) {
		w.policy = config.Policies()[0]
		f(w, w.policy)
	})
}

// offer returns the node's Offer for the policy, with subnets as EC2 describes them now.
func (w *world) offer(p lease.Policy) more.Offer {
	w.Helper()
	s, err := w.pool().DescribeInstance(w.Context())
	must(w, err)
	all, err := w.pool().DescribeSubnets(w.Context(), book.VPCOf(s), s.Instance.Zone)
	must(w, err)
	return more.OfferOf(s, p, 0, all)
}

// TestOffer compares the Offer of a node with the number of pods that the node can start. It does so before the first
// pod, and again after some of the pods.
func TestOffer(t *testing.T) {
	prefixes := lease.PoolConfig{PrefixDelegation: new(true)}
	one := lease.Config{InterfaceIndex: 1}
	for _, test := range []struct {
		kind    string
		config  lease.Config
		cidrs   []string
		want    int
		bounded bool
	}{
		{"c5.large", one, []string{"10.177.16.0/20"}, 20, false},
		{"c5.large", one, []string{"10.177.16.0/28"}, 11, true}, // AWS reserves five addresses of a /28
		{"c5.large", one, []string{"10.177.16.0/28", "10.177.17.0/28"}, 20, false},
		{"c5.large", lease.Config{InterfaceIndex: 1, PoolConfig: prefixes}, []string{"10.177.16.0/20"}, 290, false},
		{"c5.large", lease.Config{InterfaceIndex: 1, MaxENIs: 1}, []string{"10.177.16.0/20"}, 0, false},
		{"t9.cards", one, []string{"10.177.16.0/20"}, 24, false},
	} {
		name := fmt.Sprintf("%s ENIs %d prefixes %v %v", test.kind, test.config.MaxENIs,
			test.config.PrefixDelegation != nil, test.cidrs)
		t.Run(name, func(t *testing.T) {
			inSubnets(t, test.kind, test.config, func(w *world, p lease.Policy) {
				const step = 7
				for n := 0; ; n++ {
					if n%step > 0 && n < test.want {
						w.mustAcquire(n)
						continue
					}
					o := w.offer(p)
					if total := o.Leased + o.Free + o.Cooling + o.More; o.Leased != n || total != test.want {
						w.Errorf("with %d pods: %+v is %d, want %d", n, o, total, test.want)
					}
					if n == 0 && o.Bounded != test.bounded {
						w.Errorf("%+v is bounded by subnets: want %v", o, test.bounded)
					}
					if _, err := w.acquire(n); err != nil {
						if n != test.want {
							w.Errorf("%d pods start, want %d: %v", n, test.want, err)
						}
						break
					}
				}
				w.consistent()
			}, test.cidrs...)
		})
	}
}

// TestOfferFragmented: AWS reserves addresses in the first and the last /28 of a subnet. So the subnet has fewer free
// /28 than its free addresses suggest. EC2's describes do not show this. The node notices this when a growth gets a
// single address instead of a /28.
func TestOfferFragmented(t *testing.T) {
	config := lease.Config{InterfaceIndex: 1, MaxENIs: 2, PoolConfig: lease.PoolConfig{PrefixDelegation: new(true)}}
	inSubnets(t, "c5.large", config, func(w *world, p lease.Policy) {
		const blocks, all = 1 + 2*16, 1 + 2*16 + 7
		for n := range blocks + 1 {
			w.mustAcquire(n)
		}
		if o, want := w.offer(p), (more.Offer{Leased: blocks + 1, More: all - blocks - 1, Bounded: true}); o != want {
			w.Errorf("%+v, want %+v", o, want)
		}
		for n := blocks + 1; n < all; n++ {
			w.mustAcquire(n)
		}
		if o, err := w.acquire(all); err == nil {
			w.Errorf("%+v: want no more than %d pods", o, all)
		}
	}, "10.177.16.0/26")
}

// TestOfferCools: cooling addresses count apart from the free ones.
func TestOfferCools(t *testing.T) {
	inSubnets(t, "c5.large", lease.Config{InterfaceIndex: 1}, func(w *world, p lease.Policy) {
		for n := range 20 {
			w.mustAcquire(n)
		}
		w.end(0)
		w.end(1)
		if o, want := w.offer(p), (more.Offer{Leased: 18, Cooling: 2}); o != want {
			w.Errorf("%+v, want %+v", o, want)
		}
		time.Sleep(2 * time.Minute)
		if o, want := w.offer(p), (more.Offer{Leased: 18, Free: 2}); o != want {
			w.Errorf("%+v, want %+v", o, want)
		}
	}, "10.177.16.0/20")
}

// TestLastSubnets: the node knows EC2's last description of its subnets, until a subnet is full, or the clock is set
// back.
func TestLastSubnets(t *testing.T) {
	inSubnets(t, "c5.large", lease.Config{InterfaceIndex: 1}, func(w *world, p lease.Policy) {
		if all, asked := w.pool().LastSubnets(w.State()); all != nil || !asked.IsZero() {
			w.Errorf("a node that has not asked knows %+v of %v", all, asked)
		}
		w.mustAcquire(0)
		free := func() int {
			w.Helper()
			all, asked := w.pool().LastSubnets(w.State())
			if asked.IsZero() {
				return -1
			}
			for _, n := range all {
				if n.ID == "subnet-pod0" {
					return n.Free
				}
			}
			w.Fatalf("%+v", all)
			return 0
		}
		if n := free(); n != 11 {
			w.Errorf("it had %d addresses when EC2 was asked for a new ENI, want 11", n)
		}
		for n := 1; ; n++ {
			if _, err := w.acquire(n); err != nil {
				break
			}
		}
		if n := free(); n > 0 {
			w.Errorf("it has %d addresses: want none, or that this is not known", n)
		}
		if o := w.offer(p); o.More != 0 || o.Leased != 11 {
			w.Errorf("%+v, want 11 leased, and nothing more", o)
		}
		must(w, w.pool().Registry.Keep("ec2-last-subnets.json", []byte(`{"Question": "vpc-1 us-east-1a", "Asked": "`+
			time.Now().Add(time.Hour).Format(time.RFC3339)+`", "All": [{"ID": "subnet-pod0", "Free": 5}]}`)))
		if n := free(); n != -1 {
			w.Errorf("what was asked later than now counts: %d", n)
		}
		must(w, w.pool().Registry.Keep("ec2-last-subnets.json", []byte(`{"Question": "vpc-1 us-`)))
		if n := free(); n != -1 {
			w.Errorf("half of a file counts: %d", n)
		}
	}, "10.177.16.0/28")
}

// TestOfferRefused: after EC2 has refused to create an ENI, the Offer has no further ENI until the node asks EC2 again.
func TestOfferRefused(t *testing.T) {
	inSubnets(t, "c5.large", lease.Config{InterfaceIndex: 1}, func(w *world, p lease.Policy) {
		w.mustAcquire(0)
		w.EC2.Fail("CreateNetworkInterface", "NetworkInterfaceLimitExceeded", -1)
		n := 1
		for ; ; n++ {
			if _, err := w.acquire(n); err != nil {
				break
			}
		}
		if o, want := w.offer(p), (more.Offer{Leased: n}); o != want {
			w.Errorf("%+v, want %+v", o, want)
		}
		time.Sleep(time.Hour)
		if o := w.offer(p); o.More != 20-n {
			w.Errorf("after an hour: %+v, want %d more", o, 20-n)
		}
	}, "10.177.16.0/20")
}

// TestOfferElsewhere: a description of the subnets of another zone does not count.
func TestOfferElsewhere(t *testing.T) {
	inSubnets(t, "c5.large", lease.Config{InterfaceIndex: 1}, func(w *world, p lease.Policy) {
		w.mustAcquire(0)
		if o := more.OfferOf(w.State(), p, 0, []aws.Subnet{}); o.More != 9 || !o.Bounded {
			w.Errorf("%+v: want 9 more on the ENI whose subnet is not described, and no further ENI", o)
		}
	}, "10.177.16.0/20")
}

// TestOfferIPv6: a pool has only IPv6, in a subnet with both families. Each ENI takes an IPv4 address there. When no
// IPv4 address is left, the node offers no further ENI.
func TestOfferIPv6(t *testing.T) {
	config := lease.Config{InterfaceIndex: 1, IPFamilies: []string{"IPv6"}}
	config.SecGroupIDs, config.SubnetTags = []string{}, map[string]string{"for": "pods"}
	must(t, config.Validate())
	bothFamilies := func(c *ec2sim.Config) {
		c.InstanceTypes = capacityTypes
		c.VPCs[0].IPv6CIDRs = []netip.Prefix{netip.MustParsePrefix("2001:db8:77::/56")}
		for i := range c.Subnets {
			c.Subnets[i].IPv6CIDR = netip.MustParsePrefix(fmt.Sprintf("2001:db8:77:%d::/64", i))
		}
		c.Subnets[1].CIDR = netip.MustParsePrefix("10.177.16.0/28")
	}
	inBubbleOf(t, "c5.large", bothFamilies, func(w *world, _ *wires) {
		w.policy = config.Policies()[0]
		const ipv4 = 16 - 5 // AWS reserves five of these addresses
		for taken := range ipv4 + 1 {
			enis := min(ipv4-taken, 2) // beside the boot ENI
			if o := w.offer(w.policy); o.More != enis*lease.Plenty {
				w.Errorf("%d IPv4 addresses are taken: %+v, want %d ENIs", taken, o, enis)
			}
			if taken < ipv4 {
				_, err := w.byHand().CreateENI(w.Context(), aws.ENISpec{Subnet: "subnet-pod0"})
				must(w, err)
			}
		}
		if a, err := w.acquire(0); err == nil {
			w.Errorf("the pod has %v", a.Addrs)
		}
	})
}
