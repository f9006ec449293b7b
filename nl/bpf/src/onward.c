// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Splice for the veth. A packet that is addressed to a MAC address goes on by the
// ENI, from the port that stands for its own. All other packets get the bits of the mark.

#include "socket.h"

// expect_answer looks for a socket of the namespace that has the port to which the answer will come.
// A socket that takes packets from anybody must not get this answer: "kept" remembers it. Without a
// socket, "looped" remembers a TCP connection that begins. Else its answer would be taken for one to
// somebody in the namespace whose port is translated: see of_somebody.
static __always_inline void expect_answer(struct __sk_buff *skb, struct packet *p, struct ports ports)
{
	struct key key = {.what = p->proto};

	switch (awaits(skb, &key, tuple(&key.tuple, p, ports, true))) {
	case KNOWN:
		break;
	case SHARED:
		remember(skb, &key, &kept);
		break;
	case NO_SOCKET:
		if (!p->syn)
			break;
		key.what |= BEGUN;
		forget(skb, &key, &kept);
		remember(skb, &key, &looped);
	}
}

// change changes the port, if the packet has one of those to be changed. It returns false if the
// packet is CUT.
static __always_inline bool change(struct __sk_buff *skb, struct packet *p)
{
	enum kind kind = parse(p);
	struct ports *ports = p->l4;
	struct change c = {};

	if (kind == CUT)
		return false;
	if (kind != PORTS || !has_ports(p->proto))
		return true;
	if (!WITHIN(p, ports, sizeof(struct udphdr)))
		return false;
	if ((ports->source & bpf_htons(FIRST)) != bpf_htons(OWN))
		return true;
	if (!handshake(p))
		return false;
	place(&c, p, ports->source, p->at + offsetof(struct ports, source));
	expect_answer(skb, p, (struct ports){c.after, ports->dest});
	translate(skb, &c);
	return true;
}

static __always_inline bool is_to_mac(struct packet *p)
{
	return *(__u32 *)p->data == GIVEN(mac_head) && *(__u16 *)(p->data + 4) == GIVEN(mac_tail);
}

// stay is for a packet that is not sent on.
static __always_inline int stay(struct __sk_buff *skb)
{
	if (GIVEN(mark))
		skb->mark |= GIVEN(mark);
	return NEXT;
}

static __noinline int send(struct __sk_buff *skb)
{
	struct packet p = {};

	if (!begin(skb, &p))
		return AGAIN;
	if (!is_to_mac(&p))
		return stay(skb);
	if (!change(skb, &p))
		return AGAIN;
	return bpf_redirect_neigh(GIVEN(eni), NULL, 0, 0);
}

static __noinline int whole(struct __sk_buff *skb)
{
	int verdict = send(skb);

	if (verdict == AGAIN) {
		linearize(skb);
		verdict = send(skb);
	}
	return verdict == AGAIN ? stay(skb) : verdict;
}

// A packet to another address stays at once. A function without calls of helpers saves no registers.
SEC("tc") int onward(struct __sk_buff *skb)
{
	struct packet p = {};

	return begin(skb, &p) && !is_to_mac(&p) ? stay(skb) : whole(skb);
}
