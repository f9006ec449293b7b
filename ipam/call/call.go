// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package call makes the calls of a node to EC2. Each is made in its turn: while EC2 throttles an
// action, all processes of the node wait. A changing call has an intent in the registry, from
// before it is made until its outcome is recorded. What EC2 refuses is remembered for a while.
package call

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// A Node is what a command works on: the registry and the kernel of this node, and EC2.
type Node struct {
	lease.Pool
	Cloud *aws.Client
	Mode  Mode
}

// A Mode says which command calls EC2, or which part of a command. The zero mode is for an ADD that waits, and for an
// operator.
type Mode struct {
	Ahead    bool      // it gets addresses that no pod waits for: see yield
	Finishes bool      // it finishes for a collection what others have begun: see yield
	Defers   bool      // pods get their addresses before DeleteOnTermination is set: see package more, Finish
	Until    time.Time // until when it waits for EC2 to detach ENIs; zero: as long as it has time
}
