// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ptp

import "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"

// senders is the node's chain for what begins by a pod's veth: it drops what is from an
// address that is not the pod's, which is one that the node does not reach by that veth.
//
// A pod sends in another's name if it may make raw packets (CAP_NET_RAW, which containers
// have unless it is taken from them). EC2, which checks what leaves an ENI, does not see what
// stays on the node; and of IPv6 the kernel checks nothing.
//
// And the pod hands on what it takes for an answer to something looped, though it is none: a
// datagram, or more of a connection, for a port from 49152 on which nobody has open. Else it
// would come back to the pod for another port, which a security group may well have closed,
// and the node would track it.
//
// What is for the node itself passes. The kernel looks for the way back as if the node
// answered, from the address that was called; and a node with several ENIs may have rules for
// what it sends from one of its addresses, by which it answers pods, too, by the VPC.
//
// Answers that the node awaits do not come here: a chain of the type nat sees the first
// packet of a connection. So it costs the others nothing, and what it drops is not tracked.
func senders() nl.Chain {
	return nl.Chain{Name: "senders", Type: "nat", Hook: "prerouting", Priority: -110, // before kube-proxy translates the destination, at -100
		Rules: []nl.NFRule{
			{nl.IIFGroup(nl.OwnGroup), nl.ToLocal(), nl.Accept()},
			{nl.IIFGroup(nl.OwnGroup), nl.NoRouteBack(), nl.Count(), nl.Drop()},
		}}
}
