// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package more

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
)

// TestThousandNodes: a thousand nodes start at the same time, and see the same free addresses. The nodes create their
// first ENIs in all subnets, in proportion to the subnets' free addresses. No subnet becomes full. The second ENI of a
// node is in another subnet than its first ENI.
func TestThousandNodes(t *testing.T) {
	const nodes = 1000
	simtest.Credentials(t)
	sim := simtest.Sim(t, ec2sim.World(`
		vpc-1    10.0.0.0/16
		subnet-0 10.0.0.0/18 pods=yes
		subnet-1 10.0.64.0/19 pods=yes
		subnet-2 10.0.96.0/19 pods=yes
		subnet-3 10.0.128.0/28 pods=yes
		subnet-4 10.0.160.0/19`)) // the subnet of the nodes' boot ENIs
	cloud := aws.New(aws.Options{EC2URL: "http://ec2", HTTP: ec2sim.Direct{Handler: sim}})
	p := node(t, t.TempDir(), lease.Policy{}, cloud)
	spec := ENISpec{Tags: map[string]string{"pods": "yes"}}
	first, second := map[string]int{}, 0
	for range nodes {
		node, err := sim.RunInstance(ec2sim.RunInstance{Type: "m5.large", Subnet: "subnet-4"})
		if err != nil {
			t.Fatal(err)
		}
		s := &registry.State{Instance: registry.Instance{ID: node.ID, Zone: node.Zone},
			ENIs: map[string]registry.ENI{"eni-boot": {VPC: "vpc-1", Subnet: "subnet-4"}}}
		order, err := p.subnetsInOrder(t.Context(), s, spec)
		if err != nil || len(order) != 4 {
			t.Fatalf("%v, %v", order, err)
		}
		first[order[0].ID]++
		s.ENIs["eni-1"] = registry.ENI{VPC: "vpc-1", Subnet: order[0].ID}
		if again, err := p.subnetsInOrder(t.Context(), s, spec); err != nil || again[0].ID == order[0].ID {
			second++
		}
	}
	t.Logf("first choices: %v", first)
	// Of 16379 + 2*8187 + 11 free addresses, half are in the first subnet.
	for id, want := range map[string]int{"subnet-0": nodes / 2, "subnet-1": nodes / 4, "subnet-2": nodes / 4} {
		if n := first[id]; n < want*8/10 || n > want*12/10 {
			t.Errorf("%d of %d nodes chose %s, want about %d", n, nodes, id, want)
		}
	}
	if first["subnet-3"] > 5 || second > 0 {
		t.Errorf("%d nodes chose the subnet with 11 addresses, %d the same subnet twice", first["subnet-3"], second)
	}
}
