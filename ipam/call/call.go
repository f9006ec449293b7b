// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package call makes the calls of a node to EC2. Each call waits for its turn: while EC2 throttles an action, all
// processes of the node wait before they call that action. Before a changing call, the node writes an intent into the
// registry. The intent stays until a process has recorded the outcome of the call. The registry also remembers a
// refusal of EC2 for a while, and no process repeats the refused call in this time.
package call

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// A Node gives a command access to the registry and the kernel of this node, and to EC2.
type Node struct {
	lease.Pool
	Cloud *aws.Client
	Mode  Mode
}

// A Mode says for which command a Node calls EC2, or for which part of a command. The zero Mode is for an ADD that
// waits for an address, and for a command of an operator.
type Mode struct {
	Ahead    bool      // the command gets addresses for which no pod waits: see yieldToADDs
	Finishes bool      // a collection finishes calls of other processes: see yieldToADDs
	Defers   bool      // pods get their addresses before DeleteOnTermination is set: see package more, Finish
	Until    time.Time // until then, a collection waits for EC2 to detach ENIs; zero: the command is no collection
}
