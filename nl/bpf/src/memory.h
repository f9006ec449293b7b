// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// What the programs remember is in maps that all pods of a node share. Much traffic of one pod must
// not displace what is remembered of another pod. So a map is a table of sets: each pod has
// 1 << SET_BITS of them, and a set has room for SET_KEYS keys. A new key displaces the least
// recently used key of the same pod in the same set.
//
// A pod is known by the class of its filter, which the program reads, and no sender of packets can
// choose. A set is made when its first key comes. Where a map has no room for all sets of all pods,
// the kernel drops the least recently used set. So nobody has to clean up after a pod.
//
// A set holds 32 bits of each key's hash; other bits choose the set. Two keys of a pod are mistaken
// for each other once in 10^12.
//
// The maps outlive a release. nl names them by the sizes below. Whoever changes struct key, the hash
// or the order in a set, and no size, has to change the names: old and new programs would share a map.
#pragma once

#include "program.h"

enum {
	SET_BITS = 8,  // of the hash; they choose one of a pod's sets
	SET_KEYS = 16, // in a set
};

// The programs remember a packet by its key: the addresses and ports of the answer, and the
// protocol. A key of fragments has their identification in the place of the ports.
struct key {
	struct bpf_sock_tuple tuple;
	__u32 what; // the protocol, and at most one of these:
} __attribute__((aligned(8))); // for hash

enum {
	FRAGMENT = 1 << 8, // the key of fragments
	BEGUN = 1 << 9,	   // a connection that has begun without a socket
};

enum operation { RECALL, REMEMBER, FORGET };

// hash mixes in one word after the other. Each step is reversible, so it loses nothing of a word.
static __always_inline __u64 hash(const struct key *key)
{
	const __u64 *words = (const void *)key;
	__u64 h = 0;

	for (unsigned int i = 0; i < sizeof(*key) / sizeof(*words); i++) {
		h = (h ^ words[i]) * 0x9e3779b97f4a7c15; // 2^64 divided by the golden ratio, which is odd
		h ^= h >> 32;
	}
	return h;
}

// same returns all ones if two keys are equal, else 0. Without the barrier the compiler recognises
// the comparison, and makes it a jump.
static __always_inline __u64 same(__u32 a, __u32 b)
{
	__u64 differ = a ^ b;

	barrier_var(differ);
	return (__s64)(differ - 1) >> 63;
}

// search looks for a key in a part of a set. It compares all keys without a jump. The verifier follows
// each branch, for each call of memorize; with a jump for each key it took five times as long.
static __always_inline bool search(const __u32 *set, __u32 key, int from, int to)
{
	__u64 found = 0;

	for (int i = from; i < to; i++)
		found |= same(set[i], key);
	return found;
}

// insert puts a key first, and drops the last one.
static __always_inline void insert(__u32 *set, __u32 key)
{
	for (int i = SET_KEYS - 1; i > 0; i--)
		set[i] = set[i - 1];
	set[0] = key;
}

// delete clears a key wherever it is: one that was inserted again may be there twice.
static __always_inline void delete(__u32 *set, __u32 key)
{
	for (int i = 0; i < SET_KEYS; i++)
		set[i] &= ~same(set[i], key);
}

// find returns a set, or NULL. To remember something, it makes the set.
static __always_inline __u32 *find(void *map, __u32 number, enum operation op)
{
	__u32 *set = bpf_map_lookup_elem(map, &number);

	if (set || op != REMEMBER)
		return set;
	__u32 empty[SET_KEYS] = {};
	bpf_map_update_elem(map, &number, empty, BPF_NOEXIST); // another CPU may have made it
	return bpf_map_lookup_elem(map, &number);
}

// memorize works on a key in a map, for the pod that has the packet. It reports whether there was such
// a key. New keys come first in a set. A key that is recalled from the older half is inserted again,
// so keys in use stay.
static __noinline bool memorize(struct __sk_buff *skb, const struct key *k, void *map, enum operation op)
{
	__u64 h = hash(k);
	__u32 key = (__u32)h | 1; // 0 is an empty place
	__u32 *set = find(map, (skb->tc_classid << SET_BITS) + (h >> (64 - SET_BITS)), op);

	if (!set)
		return false;
	if (op == FORGET) {
		delete(set, key);
		return true;
	}
	if (search(set, key, 0, SET_KEYS / 2))
		return true;
	// A key to be remembered is inserted in any case: it need not be looked for in the older half.
	if (op == RECALL && !search(set, key, SET_KEYS / 2, SET_KEYS))
		return false;
	insert(set, key);
	return true;
}

// The maps, of the type BPF_MAP_TYPE_LRU_HASH. max_entries are the sets of one pod; nl makes the maps
// for many pods. generate.go reads the sizes.
struct map {
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
};

#define MAP(name) SEC("maps") struct map name = {sizeof(__u32), SET_KEYS * sizeof(__u32), 1 << SET_BITS}

MAP(kept);   // what sockets do not say, or say wrongly: see expect_answer, of_somebody and follow
MAP(looped); // the last TCP connections that have begun by the veth, to recognise their answers

static __always_inline bool recall(struct __sk_buff *skb, const struct key *key, struct map *map)
{
	return memorize(skb, key, map, RECALL);
}

static __always_inline void remember(struct __sk_buff *skb, const struct key *key, struct map *map)
{
	memorize(skb, key, map, REMEMBER);
}

static __always_inline void forget(struct __sk_buff *skb, const struct key *key, struct map *map)
{
	memorize(skb, key, map, FORGET);
}
