// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

var (
	dual = []lease.Family{lease.IPv4, lease.IPv6}
)

// dualWorld returns a node in a VPC that has both families and these subnets.
func dualWorld(t *testing.T, instanceType, subnets string) *world {
	t.Helper()
	c := ec2sim.World("vpc-1 10.177.0.0/16 2001:db8:77::/56\n" + subnets)
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "t9.xen", ENIs: 3, IPv4PerENI: 4, IPv6PerENI: 4, Xen: true}}
	return buildWorld(t, instanceType, c)
}

// bootForPods is the subnet of a boot ENI that serves pods.
const bootForPods = "subnet-node 10.177.0.0/24 2001:db8:77:1::/64 kubernetes_kubelet=true"

// TestNodesOwnIPv6: with interfaceIndex 0, the boot ENI serves pods. No pod gets the node's own IPv6 addresses: the
// first one of the ENI, or one that the node's kernel has.
func TestNodesOwnIPv6(t *testing.T) {
	w := dualWorld(t, "m5.large", bootForPods)
	w.policy.MinIndex, w.policy.Families = 0, dual
	own, err := w.byHand().AssignIPv6(t.Context(), w.EC2.ENIs()[0].ID, 3)
	must(t, err)
	// as DHCPv6 does
	must(t, nl.Addr{Prefix: netip.PrefixFrom(own[1], 128), Dev: "eth0", NoDAD: true}.Add(w.Host))
	for n := range 3 {
		a, err := w.acquire(n)
		must(t, err)
		if slices.ContainsFunc(a.Addrs, func(a netip.Addr) bool { return a == own[0] || a == own[1] }) {
			t.Errorf("pod %d has %v, and the node has %v", n, a.Addrs, own[:2])
		}
	}
}

// TestBootGetsIPv6: the boot ENI serves pods, and had no IPv6 address at the boot. Its first IPv6 address was assigned
// later, for a pod. When this pod has ended, other pods can get the address.
func TestBootGetsIPv6(t *testing.T) {
	w := dualWorld(t, "t9.xen", bootForPods)
	w.policy.MinIndex, w.policy.Families = 0, dual[1:]
	a := w.mustAcquire(1)
	w.end(1)
	must(t, w.pool().Learn(t.Context()))
	if s := w.State(); !s.Free.Has(a) {
		t.Errorf("%s of %s was a pod's, and no other pod can get it", a, w.ENIs()[0].ID)
	}
}

// TestBootGetsIPv6Lost: as in TestBootGetsIPv6, a pod has the first IPv6 address of the boot ENI, and then the registry
// is lost. The address gets a lease again, and is free after the end of the pod.
func TestBootGetsIPv6Lost(t *testing.T) {
	w := dualWorld(t, "t9.xen", bootForPods)
	w.policy.MinIndex, w.policy.Families = 0, dual[1:]
	a := w.mustAcquire(1)
	if all := w.ENIs()[0].IPv6Addrs; all[0] != a {
		t.Fatalf("the pod has %s, and not the first of %s", a, all)
	}
	w.routeTo(a)
	w.Lose()
	must(t, w.pool().Learn(t.Context()))
	if l, ok := w.State().Leases.At(a); !ok || l.ENI != w.ENIs()[0].ID {
		t.Errorf("a pod has %s, whose lease is %v, %+v", a, ok, l)
	}
	must(t, nl.Veth{Name: "veth0", Peer: "veth1", PeerNS: w.Host}.Del(w.Host))
	must(t, w.pool().End(t.Context(), pod(1).Key, a))
	must(t, w.pool().Learn(t.Context()))
	if s := w.State(); !s.Free.Has(a) {
		t.Errorf("%s was a pod's, and no other pod can get it", a)
	}
}

// TestBootGetsIPv6Unread: as in TestBootGetsIPv6Lost, but the namespace of the pod cannot be read when the registry is
// rebuilt. So no process knows that a pod has the address. Later, the kernel shows the address in a namespace, or the
// pod's DEL names it.
func TestBootGetsIPv6Unread(t *testing.T) {
	for name, ends := range map[string]bool{"the namespace is read later": false, "the pod ends before": true} {
		t.Run(name, func(t *testing.T) {
			w := dualWorld(t, "t9.xen", bootForPods)
			w.policy.MinIndex, w.policy.Families = 0, dual[1:]
			a := w.mustAcquire(1)
			w.Lose()
			p := w.pool()
			p.Shelves = []lease.Shelf{{Dir: "/proc/self/status"}} // this is a file, and no directory
			must(t, p.Learn(t.Context()))
			if s := w.State(); s.Leases.Has(a) || s.Free.Has(a) {
				t.Fatalf("%s: leased %v, free %v, and the registry does not know", a, s.Leases.Has(a), s.Free.Has(a))
			}
			if !ends {
				w.runPod(a)
				w.collect()
				if l, ok := w.State().Leases.At(a); !ok || l.ENI != w.ENIs()[0].ID {
					t.Errorf("a pod has %s, whose lease is %v, %+v", a, ok, l)
				}
				return
			}
			must(t, w.pool().End(t.Context(), pod(1).Key, a))
			if w.State().Free.Has(a) {
				t.Errorf("%s is free, and no process has looked whether another pod has it", a)
			}
			for range 2 {
				w.collect()
				w.Age(2 * time.Minute)
			}
			w.collect()
			if !w.State().Free.Has(a) {
				t.Errorf("%s was a pod's, and no other pod can get it", a)
			}
			must(t, w.pool().End(t.Context(), pod(1).Key, a)) // a runtime repeats the DEL
			if s := w.State(); !s.Free.Has(a) || s.Leases.Has(a) {
				t.Errorf("%s after another DEL: free %v, leased %v", a, s.Free.Has(a), s.Leases.Has(a))
			}
		})
	}
}

// TestDualStackOldENI: an ENI of the pool is in a subnet without IPv6, because the pool got IPv6 later. New pods still
// get addresses.
func TestDualStackOldENI(t *testing.T) {
	w := dualWorld(t, "m5.large", `
		subnet-node 10.177.0.0/24
		subnet-old  10.177.32.0/20 old=true
		subnet-pod0 10.177.16.0/20 2001:db8:77:1::/64 kubernetes_kubelet=true`)
	tags := w.policy.SubnetTags
	w.policy.SubnetTags = map[string]string{"old": "true"}
	w.mustAcquire(1)
	w.policy.SubnetTags, w.policy.Families = tags, dual
	for n := 2; n < 5; n++ {
		if _, err := w.acquire(n); err != nil {
			t.Errorf("pod %d: %v", n, err)
		}
	}
}

// TestDualStackFullENI: an ENI has as many IPv4 addresses as it can have, and these are free. The ENI lacks only a /80.
// An ADD succeeds without another ENI.
func TestDualStackFullENI(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionAssign, lease.ProvisionFull} {
		w := newWorld6(t, "m5.large")
		eni := w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", Secondary: 9,
			Tags: map[string]string{book.TagPool: "default"}})
		w.policy.Families, w.policy.Provision, w.policy.Warm = dual, provision, registry.Warm{Min: 12}
		w.EC2.ResetCalls()
		if _, err := w.acquire(1); err != nil || w.EC2.Asked("CreateNetworkInterface") > 0 {
			t.Errorf("%s: %s has ten free IPv4 addresses: %v, calls %v", provision, eni, err, w.writes())
		}
	}
}

// TestNoPrefixesOnXen: EC2 creates an ENI with prefixes for any instance, but attaches it only to a Nitro instance.
// Other instances get single addresses.
func TestNoPrefixesOnXen(t *testing.T) {
	for _, families := range [][]lease.Family{dual[:1], dual} {
		w := newWorld6(t, "t9.xen")
		w.policy.Prefixes, w.policy.Families = true, families
		for n := range 6 {
			if _, err := w.acquire(n); err != nil {
				t.Errorf("%v: pod %d: %v", families, n, err)
			}
		}
	}
}

// TestTypeWithoutIPv6: no ENI of the instance type can have an IPv6 address. An ADD that needs an IPv6 address changes
// nothing in EC2. The hint of its error recommends an instance type with IPv6.
func TestTypeWithoutIPv6(t *testing.T) {
	c := ec2sim.World("vpc-1 10.177.0.0/16 2001:db8:77::/56\n" + bootForPods +
		"\nsubnet-pod0 10.177.16.0/20 2001:db8:77:2::/64 kubernetes_kubelet=true")
	c.InstanceTypes = []ec2sim.InstanceType{{Name: "t9.old", ENIs: 3, IPv4PerENI: 4, Xen: true}}
	for _, families := range [][]lease.Family{dual, dual[1:]} {
		w := buildWorld(t, "t9.old", c)
		w.policy.Families = families
		for n := range 3 {
			_, err := w.acquire(n)
			e, _ := errors.AsType[*plugin.Error](err)
			if e == nil || e.Hint != "correct ipFamilies, or take an instance type with IPv6" {
				t.Errorf("%v: got %v, and no hint about IPv6", families, err)
			}
		}
		w.wantWrites(map[string]int{})
	}
}

// TestBootWithIPv6: the launch template of a node has an ENI for pods. After the boot, pods get addresses of this ENI
// at once. The node has its own IPv6 address from DHCPv6, and the kernel's route to this address does not count as a
// route to a pod.
func TestBootWithIPv6(t *testing.T) {
	for _, provision := range []lease.Provision{lease.ProvisionFull, lease.ProvisionNone} {
		w := dualWorld(t, "m5.large", `
			subnet-node 10.177.0.0/24 2001:db8:77:1::/64
			subnet-pod0 10.177.16.0/20 2001:db8:77:2::/64`)
		w.policy.Families, w.policy.Provision = dual, provision
		boot := w.ENIs()[0].ID
		own, err := w.byHand().AssignIPv6(t.Context(), boot, 1)
		must(t, err)
		must(t, nl.Wiring{
			{NS: w.Host, Object: nl.Up{Dev: "vpc" + boot[len(boot)-4:]}},
			{NS: w.Host, Object: nl.Up{Dev: "eth0"}},
			{NS: w.Host, Object: nl.Addr{Prefix: netip.PrefixFrom(own[0], 128), Dev: "eth0", NoDAD: true}},
		}.Add())
		w.attachOther(aws.ENISpec{Subnet: "subnet-pod0", Secondary: 3, IPv6Prefixes: 1,
			Tags: map[string]string{book.TagPool: "default"}})
		w.EC2.ResetCalls()
		if _, err := w.acquire(1); err != nil {
			t.Errorf("%s: %v", provision, err)
		}
		w.wantWrites(map[string]int{})
	}
}
