// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Splice for the ENI. If no socket of the namespace awaits a packet, the program
// gives the packet to the other end of the veth.

#include "socket.h"

// fragment_key makes the key that all fragments of a packet share. It returns false if the packet
// is CUT.
static __always_inline bool fragment_key(struct key *key, struct packet *p)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->what = p->proto | FRAGMENT;
	if (!p->v6) {
		tuple4(&key->tuple, ip4(p), (struct ports){.source = ip4(p)->id, .dest = 0}, false);
		return true;
	}
	struct frag_hdr *fragment = (void *)(ip6(p) + 1);
	if (!WITHIN(p, fragment, sizeof(*fragment)))
		return false;
	tuple6(&key->tuple, ip6(p), (struct ports){0, 0}, false);
	__builtin_memcpy(&key->tuple.ipv6.sport, &fragment->identification, sizeof(fragment->identification));
	return true;
}

// of_somebody reports whether a packet that no socket awaits is for the namespace itself. Such a
// packet may be an answer to a packet that onward.c has sent through the ENI. Or it belongs to a
// connection of the namespace whose port is translated, for example by netfilter. of_somebody
// recognises such a connection only for TCP, and only in two cases. Either the first packet of the
// connection arrives through the ENI. Or the first answer arrives, and "looped" has not seen the
// connection begin through the veth. In both cases, "kept" remembers the connection. The programs
// need the key in "looped" only until the first answer.
static __always_inline bool of_somebody(struct __sk_buff *skb, struct packet *p, struct key *key)
{
	if (key->what != IPPROTO_TCP)
		return false;
	key->what |= BEGUN;
	if (!p->syn) {
		if (recall(skb, key, &kept))
			return true;
		if (!p->synack || recall(skb, key, &looped))
			return false;
	}
	remember(skb, key, &kept);
	return true;
}

// awaited reports whether the packet with this key is for the namespace.
static __always_inline bool awaited(struct __sk_buff *skb, struct packet *p, struct key *key, __u32 size)
{
	switch (awaits(skb, key, size)) {
	case KNOWN:
		return true;
	case SHARED:
		return p->syn || !recall(skb, key, &kept);
	default:
		return of_somebody(skb, p, key);
	}
}

// The results of own_key, error4 and error6: the size of the key's tuple, or TOO_SHORT, or NOTHING.
enum {
	TOO_SHORT = -1, // the packet is CUT
	NOTHING,	// the packet has no port that the program translates back
	SOMETHING,	// the packet has such a port: only inner returns SOMETHING
};

// own_key makes the key of a packet from the packet's own ports.
static __always_inline int own_key(struct key *key, struct change *c, struct packet *p)
{
	struct ports *ports = p->l4;

	if (!has_ports(p->proto))
		return NOTHING;
	if (!WITHIN(p, ports, sizeof(struct udphdr)))
		return TOO_SHORT;
	if (bpf_ntohs(ports->dest) < FIRST)
		return NOTHING;
	if (!handshake(p))
		return TOO_SHORT;
	place(c, p, ports->dest, p->at + offsetof(struct ports, dest));
	key->what = p->proto;
	return tuple(&key->tuple, p, *ports, false);
}

// inner reads the ports of the packet inside an ICMP error: the packet that caused the error.
// header is the length of the inner packet's IP headers. The inner packet left through the ENI. So
// the key is that of the answer to the inner packet, with addresses and ports swapped.
static __always_inline int inner(struct key *key, struct change *c, struct packet *p, struct ports *of, __u32 header)
{
	__u32 at = p->at + sizeof(struct icmp) + header;
	struct ports *ports = p->data + at;

	if (!has_ports(key->what))
		return NOTHING;
	if (!WITHIN(p, ports, sizeof(*ports)))
		return TOO_SHORT;
	if (bpf_ntohs(ports->source) < FIRST)
		return NOTHING;
	*c = (struct change){
		.port = at + offsetof(struct ports, source),
		.check = p->at + offsetof(struct icmp, check),
		.flags = sizeof(ports->source),
		.before = ports->source,
		.after = ports->source ^ bpf_htons(BIT),
	};
	*of = *ports;
	return SOMETHING;
}

static __always_inline int error4(struct key *key, struct change *c, struct packet *p)
{
	struct icmp *icmp = p->l4;
	struct iphdr *ip = (void *)(icmp + 1);
	struct ports ports;

	if (!WITHIN(p, ip, sizeof(*ip)))
		return TOO_SHORT;
	// Destination unreachable, which includes "too big"; time exceeded; parameter problem (RFC 792).
	if (icmp->type != 3 && icmp->type != 11 && icmp->type != 12)
		return NOTHING;
	if (ip->frag_off & bpf_htons(IP_OFFSET)) // only the first fragment has ports
		return NOTHING;
	key->what = ip->protocol;
	int is = inner(key, c, p, &ports, ip->ihl * 4);
	return is == SOMETHING ? tuple4(&key->tuple, ip, ports, true) : is;
}

static __always_inline int error6(struct key *key, struct change *c, struct packet *p)
{
	struct icmp *icmp = p->l4;
	struct ipv6hdr *ip = (void *)(icmp + 1);
	struct frag_hdr *fragment = (void *)(ip + 1);
	__u32 header = sizeof(*ip);
	struct ports ports;

	if (!WITHIN(p, ip, sizeof(*ip)))
		return TOO_SHORT;
	if (icmp->type > 4) // the types of errors are 1 to 4 (RFC 4443)
		return NOTHING;
	key->what = ip->nexthdr;
	if (ip->nexthdr == IPPROTO_FRAGMENT) {
		if (!WITHIN(p, fragment, sizeof(*fragment)))
			return TOO_SHORT;
		if (fragment->frag_off & bpf_htons(IP6_OFFSET)) // only the first fragment has ports
			return NOTHING;
		key->what = fragment->nexthdr;
		header += sizeof(*fragment);
	}
	int is = inner(key, c, p, &ports, header);
	return is == SOMETHING ? tuple6(&key->tuple, ip, ports, true) : is;
}

// follow makes the later fragments of a packet go where the first fragment goes, because later
// fragments have no ports. Usually, fragments arrive in order. If the first fragment arrives late,
// the packet is lost. If the first fragment passes, follow forgets an older packet with the same
// identification, because senders use identifications again.
static __always_inline bool follow(struct __sk_buff *skb, struct packet *p, bool pass)
{
	struct key key;

	if (!begin(skb, p) || !fragment_key(&key, p))
		return false;
	if (pass)
		forget(skb, &key, &kept);
	else
		remember(skb, &key, &kept);
	return true;
}

// later handles a fragment that is not the first fragment of its packet.
static __always_inline int later(struct __sk_buff *skb, struct packet *p)
{
	struct key key;

	if (!fragment_key(&key, p))
		return AGAIN;
	return recall(skb, &key, &kept) ? bpf_redirect_peer(GIVEN(veth), 0) : NEXT;
}

// decide is the whole program. If a packet is CUT, and its linear part cannot become longer, the
// packet passes.
static __noinline int decide(struct __sk_buff *skb, bool linear)
{
	struct packet p = {};
	struct change c = {};
	struct key key = {};
	int size = NOTHING;

	if (!begin(skb, &p))
		return AGAIN;
	switch (parse(&p)) {
	case CUT:
		return AGAIN;
	case OTHER:
		return NEXT;
	case LATER:
		return later(skb, &p);
	case PORTS:
		size = own_key(&key, &c, &p);
		break;
	case ICMP4:
		size = error4(&key, &c, &p);
		break;
	case ICMP6:
		size = error6(&key, &c, &p);
		break;
	}
	if (size == TOO_SHORT && !linear)
		return AGAIN;
	bool pass = size <= NOTHING || awaited(skb, &p, &key, size);
	if (p.first && !follow(skb, &p, pass))
		return AGAIN;
	if (pass)
		return NEXT;
	translate(skb, &c);
	return bpf_redirect_peer(GIVEN(veth), 0);
}

static __noinline int whole(struct __sk_buff *skb)
{
	int verdict = decide(skb, false);

	if (verdict == AGAIN) {
		linearize(skb);
		verdict = decide(skb, true);
	}
	return verdict == AGAIN ? NEXT : verdict;
}

// direct recognises packets that cannot be for a port of at least FIRST. Nearly all packets that
// arrive through the ENI are such packets. A protocol without ports has other data in the place of
// the port, and its packets pass in any case.
static __always_inline bool direct(struct packet *p)
{
	__u8 *port4 = (void *)(ip4(p) + 1) + 2, *port6 = (void *)(ip6(p) + 1) + 2; // the first byte of the destination port

	if (!WITHIN(p, port4, 1))
		return false;
	switch (type(p)) {
	case bpf_htons(ETH_P_IP):
		if (*(__u8 *)ip4(p) != 0x45 || ip4(p)->frag_off & bpf_htons(IP_MF | IP_OFFSET)) // options, or a fragment
			return false;
		return ip4(p)->protocol != IPPROTO_ICMP && *port4 < FIRST >> 8;
	case bpf_htons(ETH_P_IPV6):
		return WITHIN(p, port6, 1) && has_ports(ip6(p)->nexthdr) && *port6 < FIRST >> 8;
	default:
		return true;
	}
}

// direct takes half of the instructions of decide. One reason is that a function that calls no
// helper saves no registers.
SEC("tc") int unawaited(struct __sk_buff *skb)
{
	struct packet p = {};

	begin(skb, &p); // direct itself checks the length of the packet
	return direct(&p) ? NEXT : whole(skb);
}
