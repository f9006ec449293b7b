// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/more"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/plugin"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// TestNoSubnet: a mistake in subnetTags does not count as a full subnet. The error of the ADD names the wanted tags,
// the VPC and the zone, and the tags that the subnets have.
func TestNoSubnet(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*lease.Policy)
		want string
		hint string
	}{
		{"a mistyped value", func(p *lease.Policy) { p.SubnetTags = map[string]string{"kubernetes_kubelet": "tru"} },
			"no subnet for a new ENI: no subnet of vpc-1 in us-east-1a has the tags kubernetes_kubelet=tru: " +
				"subnet-pod0, which comes nearest, has kubernetes_kubelet=true",
			"correct subnetTags or --subnet_filter"},
		{"one tag too many", func(p *lease.Policy) {
			p.SubnetTags = map[string]string{"kubernetes_kubelet": "true", "team": "a"}
		},
			"has the tags kubernetes_kubelet=true, team=a: subnet-pod0, which comes nearest, has no tag team",
			"'cni-ipvlan-vpc-k8s-tool subnets' lists"},
		{"a mistyped key", func(p *lease.Policy) { p.SubnetTags = map[string]string{"kubernetes-kubelet": "true"} },
			"has the tags kubernetes-kubelet=true: none of the 2 subnets there has one of these tag keys; their " +
				"tag keys are kubernetes_kubelet", "subnetTags"},
		{"a tag with an empty value, which no subnet has", func(p *lease.Policy) {
			p.SubnetTags = map[string]string{"team": ""}
		},
			"has the tags team=: none of the 2 subnets there has one of these tag keys; their " +
				"tag keys are kubernetes_kubelet",
			"subnetTags"},
		{"no IPv6", func(p *lease.Policy) { p.Families = []lease.Family{lease.IPv4, lease.IPv6} },
			"no subnet for a new ENI: subnet-pod0, in vpc-1 in us-east-1a, has no CIDR of IPv6", "ipFamilies"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, "m5.large", 20)
			tt.set(&w.policy)
			_, err := w.acquire(1)
			if err == nil {
				t.Fatal("there is a subnet for a new ENI")
			}
			e, ok := errors.AsType[*plugin.Error](err)
			if !ok || e.Code != plugin.CodeTryAgain || !strings.Contains(e.Hint, tt.hint) ||
				!errors.Is(err, more.ErrNoSubnet) || errors.Is(err, aws.ErrSubnetFull) {
				t.Errorf("got %v: %+v", err, e)
			}
			if !strings.HasSuffix(err.Error(), tt.want) || strings.Contains(err.Error(), "%!") {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
}

// TestFullSubnets: if no subnet with the tags has a free address, the node asks EC2 to create nothing.
func TestFullSubnets(t *testing.T) {
	w := newWorld(t, "m5.large", 28)
	const rest = 10 // addresses of a /28, without the five that AWS reserves and the primary address
	if _, err := w.pool().Cloud.CreateENI(t.Context(), aws.ENISpec{Subnet: "subnet-pod0",
		Secondary: rest}); err != nil {
		t.Fatal(err)
	}
	_, err := w.acquire(1)
	const want = "subnet is full: no subnet of vpc-1 in us-east-1a with the tags kubernetes_kubelet=true has free " +
		"addresses"
	if !errors.Is(err, aws.ErrSubnetFull) || errors.Is(err, more.ErrNoSubnet) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// TestSubnetStaysFull: the runtime repeats the ADDs of twenty pods, but the node asks EC2 only a few times a minute.
// When the subnet has room again, the pods soon get addresses.
func TestSubnetStaysFull(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		const pods, again = 20, 12 * time.Second
		w.mustAcquire(0)
		began := time.Now()
		w.EC2.Fail("AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet", -1)
		w.EC2.Fail("CreateNetworkInterface", "InsufficientFreeAddressesInSubnet", -1)
		w.EC2.ResetCalls()
		for i := 0; time.Since(began) < 5*time.Minute; i++ {
			if _, err := w.acquire(1 + i%pods); err == nil || !strings.Contains(err.Error(),
				aws.ErrSubnetFull.Error()) {
				w.Fatalf("it fails with %v", err)
			}
			time.Sleep(again / pods)
		}
		for _, action := range []string{"AssignPrivateIpAddresses", "CreateNetworkInterface", "DescribeSubnets"} {
			if n := w.EC2.Asked(action); n < 5 || n > 30 {
				w.Errorf("%s: %d calls in five minutes", action, n)
			}
		}
		w.EC2.Fail("AssignPrivateIpAddresses", "", 0)
		time.Sleep(registry.MostEmpty)
		w.mustAcquire(1)
	})
}

// TestSubnetStaysFullChurn: while a subnet is full, pods end, and other pods get their addresses. The node does not
// conclude that the subnet has room.
func TestSubnetStaysFullChurn(t *testing.T) {
	inBubble(t, "m5.large", func(w *world, _ *wires) {
		w.policy.ReuseWait = time.Second
		w.mustAcquire(0)
		w.EC2.Fail("AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet", -1)
		w.EC2.Fail("CreateNetworkInterface", "InsufficientFreeAddressesInSubnet", -1)
		w.EC2.ResetCalls()
		has, moves := 0, 0
		for i, began := 1, time.Now(); time.Since(began) < 5*time.Minute; i++ {
			if _, err := w.acquire(i); err == nil {
				has, moves = i, moves+1
			}
			if i%5 == 0 {
				w.end(has)
			}
			time.Sleep(time.Second)
		}
		if n := w.EC2.Asked("AssignPrivateIpAddresses"); moves < 50 || n < 5 || n > 30 {
			w.Errorf("%d calls in five minutes, and %d pods got the address of another", n, moves)
		}
	})
}
