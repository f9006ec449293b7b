// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipam

import (
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/asked"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/call"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/lease"
)

// A Pool manages the addresses of a node: it leases addresses to pods, gets more addresses from EC2, and releases
// addresses to EC2.
type Pool struct{ asked.Node }

// New returns a Pool that calls EC2 with this client.
func New(p lease.Pool, cloud *aws.Client) *Pool {
	q := &Pool{}
	q.Pool, q.Cloud = p, cloud
	return q
}

// withMode returns a copy of the pool with another mode, for a command or a part of a command.
func (p *Pool) withMode(m call.Mode) *Pool {
	q := *p
	q.Mode = m
	return &q
}

// Open opens the pool of this node.
func Open(policy lease.Policy) (*Pool, error) {
	p, err := lease.Open(policy)
	if err != nil {
		return nil, err
	}
	return New(*p, aws.New(aws.Options{})), nil
}
