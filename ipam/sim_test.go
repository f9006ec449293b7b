// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"sync/atomic"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/ec2sim"
)

// simulations counts them.
var simulations atomic.Uint32

// NewSim is a simulation whose ENIs have MAC addresses of their own: collections look for the
// links of ENIs in all namespaces of the machine, and tests run at once.
func NewSim(c ec2sim.Config) (*ec2sim.Sim, error) {
	c.MACs = uint16(simulations.Add(1))
	return ec2sim.New(c)
}
