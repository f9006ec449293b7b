// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Forbid. It drops packets to the given addresses. Each family has at most one
// such address.

#include "packet.h"

static __always_inline bool is4(struct packet *p)
{
	return GIVEN(has4) && ip4(p)->daddr == GIVEN(addr4);
}

static __always_inline bool is6(struct packet *p)
{
	__be32 *to = ip6(p)->daddr.s6_addr32;

	return GIVEN(has6) && to[0] == GIVEN(addr6_0) && to[1] == GIVEN(addr6_1) && to[2] == GIVEN(addr6_2) && to[3] == GIVEN(addr6_3);
}

static __always_inline int look(struct __sk_buff *skb)
{
	struct packet p;

	if (!begin(skb, &p))
		return AGAIN;
	switch (type(&p)) {
	case bpf_htons(ETH_P_IP):
		return is4(&p) ? TC_ACT_SHOT : NEXT;
	case bpf_htons(ETH_P_IPV6):
		if (!WITHIN(&p, ip6(&p), sizeof(struct ipv6hdr)))
			return AGAIN;
		return is6(&p) ? TC_ACT_SHOT : NEXT;
	default:
		return NEXT;
	}
}

static __noinline int again(struct __sk_buff *skb)
{
	linearize(skb);
	int verdict = look(skb);
	return verdict == AGAIN ? NEXT : verdict;
}

SEC("tc") int refuse(struct __sk_buff *skb)
{
	int verdict = look(skb);

	return verdict == AGAIN ? again(skb) : verdict;
}
