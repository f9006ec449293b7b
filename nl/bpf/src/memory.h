// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The programs remember packets in maps that all pods of a node share. Much traffic of one pod must
// not displace the entries of another pod. So a map is a table of sets: each pod has 1 << SET_BITS
// sets, and a set has room for SET_KEYS keys. A new key displaces the least recently used key in
// the same set of the same pod.
//
// The class of a filter identifies the pod. The program reads the class, and no sender of packets
// can choose it. A program makes a set when the first key of this set comes. If a map has no room
// for all sets of all pods, the kernel drops the least recently used set. So no process must clean
// up after a pod.
//
// A set holds 32 bits of each key's hash. Other bits of the hash choose the set. The programs
// confuse two keys of a pod once in 10^12 cases.
//
// The maps outlive a release. Package nl puts the sizes below into the names of the maps. A change
// of struct key, of the hash, or of the order in a set changes no size. If you make such a change,
// also change the names. Otherwise, old and new programs would share a map.
#pragma once

#include "program.h"

enum {
	SET_BITS = 8,  // this number of bits of the hash chooses one of a pod's sets
	SET_KEYS = 16, // the number of keys in a set
};

// The programs remember a packet by a key: the addresses and ports of the answer to the packet, and
// the protocol. A key for fragments has the identification of the fragments in the place of the
// ports.
struct key {
	struct bpf_sock_tuple tuple;
	__u32 what; // the protocol, and at most one of the bits FRAGMENT and BEGUN
} __attribute__((aligned(8))); // because hash reads words of 64 bits

enum {
	FRAGMENT = 1 << 8, // the key is for fragments
	BEGUN = 1 << 9,	   // the key is for a connection that began without a socket
};

enum operation { RECALL, REMEMBER, FORGET };

// hash mixes one word after the other into the result. Each step is reversible, so hash loses no
// bit of a word.
static __always_inline __u64 hash(const struct key *key)
{
	const __u64 *words = (const void *)key;
	__u64 h = 0;

	for (unsigned int i = 0; i < sizeof(*key) / sizeof(*words); i++) {
		h = (h ^ words[i]) * 0x9e3779b97f4a7c15; // an odd number: 2^64 divided by the golden ratio
		h ^= h >> 32;
	}
	return h;
}

// same returns a number whose bits are all 1 if two keys are equal, and otherwise 0. Without the
// barrier, the compiler would recognise the comparison, and make a jump of it.
static __always_inline __u64 same(__u32 a, __u32 b)
{
	__u64 differ = a ^ b;

	barrier_var(differ);
	return (__s64)(differ - 1) >> 63;
}

// search looks for a key in a part of a set. It compares all keys without a jump: the verifier
// follows each branch, for each call of memorize. With a jump for each key, the verifier took five
// times as long.
static __always_inline bool search(const __u32 *set, __u32 key, int from, int to)
{
	__u64 found = 0;

	for (int i = from; i < to; i++)
		found |= same(set[i], key);
	return found;
}

// insert puts a key at the beginning of a set, and drops the last key.
static __always_inline void insert(__u32 *set, __u32 key)
{
	for (int i = SET_KEYS - 1; i > 0; i--)
		set[i] = set[i - 1];
	set[0] = key;
}

// delete clears all copies of a key: a key that was inserted again may be in the set twice.
static __always_inline void delete(__u32 *set, __u32 key)
{
	for (int i = 0; i < SET_KEYS; i++)
		set[i] &= ~same(set[i], key);
}

// find returns a set, or NULL if there is no such set. For REMEMBER, find makes a missing set.
static __always_inline __u32 *find(void *map, __u32 number, enum operation op)
{
	__u32 *set = bpf_map_lookup_elem(map, &number);

	if (set || op != REMEMBER)
		return set;
	__u32 empty[SET_KEYS] = {};
	bpf_map_update_elem(map, &number, empty, BPF_NOEXIST); // another CPU may have made the set
	return bpf_map_lookup_elem(map, &number);
}

// memorize does an operation with a key in a map, for the pod to which the packet belongs. For
// RECALL, it reports whether the map has the key. New keys come first in a set. If RECALL finds a
// key in the older half of a set, it inserts the key again. So keys that are in use stay.
static __noinline bool memorize(struct __sk_buff *skb, const struct key *k, void *map, enum operation op)
{
	__u64 h = hash(k);
	__u32 key = (__u32)h | 1; // 0 stands for an empty place
	__u32 *set = find(map, (skb->tc_classid << SET_BITS) + (h >> (64 - SET_BITS)), op);

	if (!set)
		return false;
	if (op == FORGET) {
		delete(set, key);
		return true;
	}
	if (search(set, key, 0, SET_KEYS / 2))
		return true;
	// REMEMBER inserts the key in any case, so it does not search the older half.
	if (op == RECALL && !search(set, key, SET_KEYS / 2, SET_KEYS))
		return false;
	insert(set, key);
	return true;
}

// The maps have the type BPF_MAP_TYPE_LRU_HASH. max_entries is the number of sets of one pod.
// Package nl makes the maps for many pods. generate.go reads the sizes.
struct map {
	__u32 key_size;
	__u32 value_size;
	__u32 max_entries;
};

#define MAP(name) SEC("maps") struct map name = {sizeof(__u32), SET_KEYS * sizeof(__u32), 1 << SET_BITS}

MAP(kept);   // facts that sockets do not show, or show wrongly: see expect_answer, of_somebody and follow
MAP(looped); // the latest TCP connections that began through the veth: the programs recognise their answers

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
