// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// How the programs find the headers of a packet, and change a port. The verifier accepts a read only
// behind a check that the packet goes that far: WITHIN.
#pragma once

#include "program.h"

// The parts of the fragment fields, in host order. net/ip.h and net/ipv6.h are not for others.
enum {
	IP_MF = 0x2000,
	IP_OFFSET = 0x1fff,
	IP6_OFFSET = 0xfff8,
};

// The fragment header of IPv6 (RFC 8200, section 4.5).
struct frag_hdr {
	__u8 nexthdr;
	__u8 reserved;
	__be16 frag_off;
	__be32 identification;
};

// The header of an ICMP message of either version (RFC 792, RFC 4443). linux/icmp.h includes the C
// library's headers, which there are none of for this target.
struct icmp {
	__u8 type;
	__u8 code;
	__sum16 check;
	__be32 rest;
};

struct ports {
	__be16 source;
	__be16 dest;
};

// What a program knows of a packet. The pointers are invalid once a helper has changed the packet.
struct packet {
	void *data; // from the Ethernet header on
	void *end;  // of the linear part, which has the headers as a rule; the rest is in page fragments
	void *l4;   // the header after those of IP
	__u32 at;   // its offset: the verifier refuses to subtract pointers in 32 bits, as the compiler would
	__u8 proto; // of that header
	bool v6;
	bool first;  // it is the first of several fragments
	bool syn;    // it begins a connection
	bool synack; // it answers one that begins
};

enum kind {
	CUT,   // the linear part ends before the header
	OTHER, // not IP
	PORTS, // IP; has_ports says of its protocol whether there are ports
	LATER, // a fragment, and not the first one
	ICMP4,
	ICMP6,
};

#define WITHIN(p, from, n) ((void *)(from) + (n) <= (p)->end)

// type is the EtherType. struct ethhdr is packed, and so the compiler would read it byte by byte.
static __always_inline __be16 type(struct packet *p) { return *(__be16 *)(p->data + offsetof(struct ethhdr, h_proto)); }
static __always_inline struct iphdr *ip4(struct packet *p) { return p->data + ETH_HLEN; }
static __always_inline struct ipv6hdr *ip6(struct packet *p) { return p->data + ETH_HLEN; }

static __always_inline enum kind parse4(struct packet *p)
{
	struct iphdr *ip = ip4(p);
	__u16 fragment = ip->frag_off & bpf_htons(IP_MF | IP_OFFSET);

	p->proto = ip->protocol;
	p->at = ETH_HLEN + ip->ihl * 4;
	p->l4 = p->data + p->at;
	if (fragment) {
		if (fragment != bpf_htons(IP_MF))
			return LATER;
		p->first = true;
	}
	return p->proto == IPPROTO_ICMP ? ICMP4 : PORTS;
}

static __always_inline enum kind parse6(struct packet *p)
{
	struct ipv6hdr *ip = ip6(p);
	struct frag_hdr *fragment = (void *)(ip + 1);

	p->v6 = true;
	if (!WITHIN(p, fragment, sizeof(*fragment)))
		return CUT;
	p->proto = ip->nexthdr;
	p->at = ETH_HLEN + sizeof(*ip);
	p->l4 = fragment;
	if (p->proto == IPPROTO_ICMPV6)
		return ICMP6;
	if (p->proto != IPPROTO_FRAGMENT)
		return PORTS;
	p->proto = fragment->nexthdr;
	if (fragment->frag_off & bpf_htons(IP6_OFFSET))
		return LATER;
	p->first = true;
	p->at += sizeof(*fragment);
	p->l4 = fragment + 1;
	return PORTS;
}

// begin finds the packet. It returns false if the linear part has less than Ethernet and IPv4.
static __always_inline bool begin(struct __sk_buff *skb, struct packet *p)
{
	p->data = (void *)(long)skb->data;
	p->end = (void *)(long)skb->data_end;
	return WITHIN(p, p->data, ETH_HLEN + sizeof(struct iphdr));
}

// parse finds the header that comes after those of IP.
static __always_inline enum kind parse(struct packet *p)
{
	switch (type(p)) {
	case bpf_htons(ETH_P_IP):
		return parse4(p);
	case bpf_htons(ETH_P_IPV6):
		return parse6(p);
	default:
		return OTHER;
	}
}

static __always_inline bool has_ports(__u8 proto) { return proto == IPPROTO_TCP || proto == IPPROTO_UDP; }

// handshake notes whether a TCP packet begins a connection, or answers one that begins. It returns
// false if the packet is CUT.
static __always_inline bool handshake(struct packet *p)
{
	__u8 *flags = p->l4 + 13; // RFC 9293, section 3.1
	const __u8 SYN = 0x02, ACK = 0x10;

	if (p->proto != IPPROTO_TCP)
		return true;
	if (!WITHIN(p, flags, 1))
		return false;
	p->syn = (*flags & (SYN | ACK)) == SYN;
	p->synack = (*flags & (SYN | ACK)) == (SYN | ACK);
	return true;
}

// AGAIN is the verdict on a packet that is CUT: linearize it, and try again. It is no TC_ACT_*.
#define AGAIN (1 << 16)

// linearize makes the headers of a packet linear. A program does so only where it must: the kernel
// copies the head of a packet that others hold, too, such as a capture or a sender on this host.
static __always_inline void linearize(struct __sk_buff *skb)
{
	const __u32 most = 160; // Ethernet, IP with options, ICMP, IP with options, ports
	__u32 len = skb->len;

	bpf_skb_pull_data(skb, len < most ? len : most);
}

// A change of a port in a packet.
struct change {
	__u32 port;  // its offset in the packet
	__u32 check; // the offset of the checksum
	__u32 flags; // of bpf_l4_csum_replace: the size of the port; BPF_F_MARK_MANGLED_0 where 0 is "none"
	__be16 before;
	__be16 after;
};

// place prepares the change of a port of TCP or UDP.
static __always_inline void place(struct change *c, struct packet *p, __be16 port, __u32 at)
{
	c->port = at;
	c->before = port;
	c->after = port ^ bpf_htons(BIT);
	c->check = p->at + (p->proto == IPPROTO_TCP ? offsetof(struct tcphdr, check) : offsetof(struct udphdr, check));
	c->flags = sizeof(port) | (p->proto == IPPROTO_TCP ? 0 : BPF_F_MARK_MANGLED_0);
}

// translate changes the port, and corrects the checksum. After it, pointers to the packet are invalid.
static __always_inline void translate(struct __sk_buff *skb, struct change *c)
{
	bpf_skb_store_bytes(skb, c->port, &c->after, sizeof(c->after), 0);
	bpf_l4_csum_replace(skb, c->check, c->before, c->after, c->flags);
}
