// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// The parts that all programs share. A program is the function in the section "tc" of its file. The
// functions that the program calls are in the section ".text". bpf-helpers(7) documents the
// helpers. linux/bpf.h documents the context, struct __sk_buff.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/pkt_cls.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

// GIVEN is a number that our Go code writes into the program before it loads the program: see
// program.go. For the compiler, GIVEN is the address of a symbol that another file defines. The
// verifier sees a constant, and removes the code that cannot run with this constant.
#define GIVEN(name) ({ __u64 given; asm("%0 = " #name " ll" : "=r"(given)); given; })

// With the verdict NEXT, the next filter gets the packet. After the last filter, the packet takes
// its usual way.
#define NEXT TC_ACT_UNSPEC

// The programs translate a port of at least OWN and below FIRST by setting BIT, and translate it
// back by clearing BIT. bpf.go has the same numbers.
enum {
	BIT = 0x4000,
	OWN = 0x8000,
	FIRST = OWN | BIT,
};
