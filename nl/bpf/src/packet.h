// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The functions in this file find the headers of a packet, and change a port. The verifier accepts
// a read of a packet only after a check (WITHIN) that the packet is long enough.
#pragma once

#include "program.h"

// The parts of the fragment fields, in host byte order. The kernel does not export net/ip.h and
// net/ipv6.h, which define these numbers.
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

// The header of an ICMP or ICMPv6 message (RFC 792, RFC 4443). The programs cannot include
// linux/icmp.h: it includes headers of the C library, and this target has no C library.
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

// The facts that a program knows about a packet. After a helper has changed the packet, the
// pointers are invalid.
struct packet {
	void *data; // the beginning of the Ethernet header
	void *end;  // the end of the linear part, which usually has all headers; the rest is in page fragments
	void *l4;   // the header after the IP headers
	__u32 at;   // the offset of l4: the compiler would subtract pointers in 32 bits, and the verifier refuses this
	__u8 proto; // the protocol of l4
	bool v6;
	bool first;  // the packet is the first of several fragments
	bool syn;    // the packet begins a TCP connection
	bool synack; // the packet answers a packet that begins a TCP connection
};

enum kind {
	CUT,   // the linear part ends before the end of the header
	OTHER, // not IP
	PORTS, // any other IP packet: has_ports reports whether its protocol has ports
	LATER, // a fragment that is not the first fragment of its packet
	ICMP4,
	ICMP6,
};

#define WITHIN(p, from, n) ((void *)(from) + (n) <= (p)->end)

// type returns the EtherType. It does not read a member of struct ethhdr: this struct is packed, so
// the compiler would read it byte by byte.
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

// begin finds the linear part of a packet. It returns false if the linear part is shorter than the
// headers of Ethernet and IPv4.
static __always_inline bool begin(struct __sk_buff *skb, struct packet *p)
{
	p->data = (void *)(long)skb->data;
	p->end = (void *)(long)skb->data_end;
	return WITHIN(p, p->data, ETH_HLEN + sizeof(struct iphdr));
}

// parse finds the header after the IP headers.
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

// handshake sets syn and synack for a TCP packet. It returns false if the packet is CUT.
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

// AGAIN is the verdict on a packet that is CUT: the caller must linearize the packet, and try
// again. No TC_ACT_* has this number.
#define AGAIN (1 << 16)

// linearize makes the headers of a packet linear. A program calls it only if necessary: if a
// capture, or a sender on this node, also holds the packet, the kernel copies the packet's head.
static __always_inline void linearize(struct __sk_buff *skb)
{
	const __u32 most = 160; // Ethernet, IP with options, ICMP, IP with options, ports
	__u32 len = skb->len;

	bpf_skb_pull_data(skb, len < most ? len : most);
}

// A change of a port in a packet.
struct change {
	__u32 port;  // the offset of the port in the packet
	__u32 check; // the offset of the checksum
	__u32 flags; // for bpf_l4_csum_replace: the port's size; BPF_F_MARK_MANGLED_0 if a checksum of 0 means "none"
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

// translate changes the port, and corrects the checksum. After a call of translate, pointers to the
// packet are invalid.
static __always_inline void translate(struct __sk_buff *skb, struct change *c)
{
	bpf_skb_store_bytes(skb, c->port, &c->after, sizeof(c->after), 0);
	bpf_l4_csum_replace(skb, c->check, c->before, c->after, c->flags);
}
