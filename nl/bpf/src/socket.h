// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// How the programs ask the namespace for a socket that awaits a packet.
#pragma once

#include "memory.h"
#include "packet.h"

// From net/tcp_states.h, which is not for others. A connected UDP socket is ESTABLISHED.
enum { ESTABLISHED = 1, LISTEN = 10 };

enum awaited {
	NO_SOCKET,
	KNOWN,	// by the socket of this very connection
	SHARED, // by a socket that takes packets from anybody
};

// awaits looks for the socket that awaits a packet with this key, whose tuple has this size.
static __always_inline enum awaited awaits(struct __sk_buff *skb, struct key *key, __u32 size)
{
	bool udp = key->what == IPPROTO_UDP;
	struct bpf_sock *sk = udp ? bpf_sk_lookup_udp(skb, &key->tuple, size, BPF_F_CURRENT_NETNS, 0)
				  : bpf_skc_lookup_tcp(skb, &key->tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return NO_SOCKET;
	__u32 state = sk->state;
	bpf_sk_release(sk);
	if (udp)
		return state == ESTABLISHED ? KNOWN : SHARED;
	return state == LISTEN ? SHARED : KNOWN;
}

// tuple4 fills in a tuple, and returns its size. With swap it is the tuple of the answer.
static __always_inline __u32 tuple4(struct bpf_sock_tuple *t, const struct iphdr *ip, struct ports ports, bool swap)
{
	t->ipv4.saddr = swap ? ip->daddr : ip->saddr;
	t->ipv4.daddr = swap ? ip->saddr : ip->daddr;
	t->ipv4.sport = swap ? ports.dest : ports.source;
	t->ipv4.dport = swap ? ports.source : ports.dest;
	return sizeof(t->ipv4);
}

static __always_inline __u32 tuple6(struct bpf_sock_tuple *t, const struct ipv6hdr *ip, struct ports ports, bool swap)
{
	__builtin_memcpy(t->ipv6.saddr, swap ? &ip->daddr : &ip->saddr, sizeof(t->ipv6.saddr));
	__builtin_memcpy(t->ipv6.daddr, swap ? &ip->saddr : &ip->daddr, sizeof(t->ipv6.daddr));
	t->ipv6.sport = swap ? ports.dest : ports.source;
	t->ipv6.dport = swap ? ports.source : ports.dest;
	return sizeof(t->ipv6);
}

// tuple does the same for either family.
static __always_inline __u32 tuple(struct bpf_sock_tuple *t, struct packet *p, struct ports ports, bool swap)
{
	return p->v6 ? tuple6(t, ip6(p), ports, swap) : tuple4(t, ip4(p), ports, swap);
}
