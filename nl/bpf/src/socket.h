// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The functions in this file ask the namespace for the socket that awaits a packet.
#pragma once

#include "memory.h"
#include "packet.h"

// Numbers of net/tcp_states.h, which the kernel does not export. A connected UDP socket has the
// state ESTABLISHED.
enum { ESTABLISHED = 1, LISTEN = 10 };

enum awaited {
	NO_SOCKET,
	KNOWN,	// the socket of the packet's own connection awaits the packet
	SHARED, // a socket that takes packets from any sender awaits the packet
};

// awaits looks for the socket that awaits a packet with this key. size is the size of the key's
// tuple.
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

// tuple4 fills in the tuple of an IPv4 packet, and returns the tuple's size. With swap, it fills in
// the tuple of the packet's answer.
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

// tuple is like tuple4, but for a packet of any family.
static __always_inline __u32 tuple(struct bpf_sock_tuple *t, struct packet *p, struct ports ports, bool swap)
{
	return p->v6 ? tuple6(t, ip6(p), ports, swap) : tuple4(t, ip4(p), ports, swap);
}
