// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Limit. It matches what counts: all packets; or, of what goes out, only what the
// namespace itself sends.

#include "program.h"

SEC("tc") int count(struct __sk_buff *skb)
{
	// What a filter returns that is not direct-action: tc-bpf(8).
	const int match = -1, no_match = 0;

	return GIVEN(own) && skb->ingress_ifindex ? no_match : match; // the index is 0 if the packet was made here
}
