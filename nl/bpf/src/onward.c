// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The program of a Splice for the veth. It sends packets to the given MAC address out through the
// ENI, and translates their source port. In the marks of all other packets, it sets the bits of the
// given mark.

#include "socket.h"

// expect_answer looks for a socket of the namespace that awaits packets at the port to which the
// answer will come. If this socket takes packets from any sender, it must not get the answer, so
// "kept" remembers the answer. If there is no such socket, and the packet begins a TCP connection,
// "looped" remembers the connection. Otherwise, of_somebody would take the answer for an answer to
// the namespace itself.
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

// change translates the source port if this port is at least OWN and below FIRST. It returns false
// if the packet is CUT.
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

// stay handles a packet that the program does not send through the ENI.
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

// onward itself handles a packet to another MAC address: a function that calls no helper saves no
// registers.
SEC("tc") int onward(struct __sk_buff *skb)
{
	struct packet p = {};

	return begin(skb, &p) && !is_to_mac(&p) ? stay(skb) : whole(skb);
}
