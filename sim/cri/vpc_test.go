// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"net/netip"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/simtest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

const port = 8080

// A vpc has a node, and a host that is not a node.
type vpc struct {
	fabric     *vpcsim.Fabric
	node, host *vpcsim.Instance
	families   int // 1: only IPv4; 2: IPv4 and IPv6
}

func newVPC(t *testing.T, families int) *vpc {
	t.Helper()
	v := &vpc{families: families, fabric: simtest.Fabric(t, ec2sim.World(`
		vpc-1       10.0.0.0/16 100.64.0.0/16 2001:db8:0:100::/56
		subnet-node 10.0.0.0/24 2001:db8:0:100::/64
		subnet-pods 100.64.0.0/20 2001:db8:0:101::/64 kubernetes_kubelet=true`))}
	run := ec2sim.RunInstance{Type: "m5.4xlarge", Subnet: "subnet-node", IPv6: families - 1}
	v.node, v.host = simtest.Launch(t, v.fabric, "node", run), simtest.Launch(t, v.fabric, "host", run)
	if err := v.host.Answer(port); err != nil {
		t.Fatal(err)
	}
	return v
}

// hostAddrs returns the host's addresses, by family.
func (v *vpc) hostAddrs() []netip.Addr { return []netip.Addr{v.host.Addr(), v.host.Addr6()} }
