// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package bpf writes the programs that package nl has links run on their packets, in BPF's
// instructions: each is made for the links and addresses that it is about, and takes no
// compiler but Go's. [Onward] and [Unawaited] are those of a Splice, [Refuse] is that of a
// Forbid, and [Count] that of a Limit; nl says what these are for. It knows of no namespace,
// and does not talk to the kernel.
//
// A program is written in pieces: functions that emit some instructions each. They know each
// other's labels, and have the registers in common:
//
//	r0      what a call returns, or any number for a moment
//	r1-r5   the arguments of a call, which loses them
//	r2, r3  else the packet, from its Ethernet header on, and its end
//	r4, r5  else any number for a moment
//	r6      the context, struct __sk_buff
//	r7      the header that comes after that of IP
//	r8      the protocol of that header
//	r9      what else is known of the packet: isFirst and the others
//
// On the stack are the key by which a program remembers a packet, and what translate needs.
//
// The kernel's verifier takes a program only if it asks, before it reads, whether the packet
// goes that far: see within. What the verifier says of one that it refuses is part of the error
// of nl.
package bpf

// The programs of a Splice change the ports from First on, to the last that there is, into
// those from Own up to First and back. They differ by one bit.
const (
	Own   = 0x8000
	First = Own | Bit
	Bit   = 0x4000
)

// InsnSize is the size of an instruction, in bytes.
const InsnSize = 8

// Maps are the files of the maps that the programs of a Splice share. Each has keys of
// KeySize bytes, and values that mean nothing.
type Maps struct {
	Kept   int // what the sockets do not tell, or tell wrongly: see Onward, noSocket and fragments
	Looped int // the last connections of TCP that have begun by the veth, to tell what answers them
}
