// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Limit. It matches the packets that count against the limit: all packets, or with
// "own", only packets that the namespace itself sends.

#include "program.h"

SEC("tc") int count(struct __sk_buff *skb)
{
	// The results of a filter that is not direct-action: see tc-bpf(8).
	const int match = -1, no_match = 0;

	return GIVEN(own) && skb->ingress_ifindex ? no_match : match; // the index is 0 if this namespace made the packet
}
