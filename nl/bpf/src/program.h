// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// What all programs share. A program is the function in the section "tc" of its file; the functions
// that it calls are in ".text". bpf-helpers(7) documents the helpers, linux/bpf.h the context.
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

// GIVEN is a number that Go writes into the program before it loads it: see program.go. The
// compiler takes it for the address of a symbol that another file defines. The verifier sees a
// constant, and removes the code that cannot run with it.
#define GIVEN(name) ({ __u64 given; asm("%0 = " #name " ll" : "=r"(given)); given; })

// NEXT leaves the packet to the next filter. After the last filter the packet goes on its way.
#define NEXT TC_ACT_UNSPEC

// The programs change ports from FIRST on into those from OWN on, and back. bpf.go has the same numbers.
enum {
	BIT = 0x4000,
	OWN = 0x8000,
	FIRST = OWN | BIT,
};
