// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/bench/image"
)

const (
	fstatat    = unix.SYS_NEWFSTATAT
	epollEvent = 12 // the size of struct epoll_event
)

// program returns the beginning of a file of this size, which makes the file a program for Linux without libraries and
// runtime, elf(5). It makes the calls of the file, and ends with 1 if one of them has another result.
func program(size int) []byte {
	const header, segment = 64, 56
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...) // 64 bits, little endian
	half := func(v ...uint16) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint16(b, v)
		}
	}
	long := func(v ...uint64) {
		for _, v := range v {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	half(2, 62)                                                   // an executable for x86-64
	half(1, 0)                                                    // version
	long(image.Base+header+segment, header, 0)                    // the entry, and where the segment is described
	half(0, 0, header, segment, 1, 0, 0, 0)                       // flags, sizes, one segment, no sections
	half(1, 0, 7, 0)                                              // load it, to be read, written and executed
	long(0, image.Base, image.Base, uint64(size))                 // from the beginning of the file
	long(uint64(image.Behind(size)-image.Base)+image.Room, 1<<12) // with the room behind it
	b = append(b, 0x48, 0xbb)                                     // mov rbx, the first call
	long(image.Base + image.Calls)
	return append(b,
		0x48, 0x8b, 0x03, //       next: mov rax, [rbx]
		0x48, 0x8b, 0x7b, 0x08, // mov rdi, [rbx+8]
		0x48, 0x8b, 0x73, 0x10, // mov rsi, [rbx+16]
		0x48, 0x8b, 0x53, 0x18, // mov rdx, [rbx+24]
		0x4c, 0x8b, 0x53, 0x20, // mov r10, [rbx+32]
		0x4c, 0x8b, 0x43, 0x28, // mov r8, [rbx+40]
		0x4c, 0x8b, 0x4b, 0x30, // mov r9, [rbx+48]
		0x0f, 0x05, //             syscall
		0x48, 0x3b, 0x43, 0x38, // cmp rax, [rbx+56]
		0x7c, 0x0c, //             jl fail
		0x48, 0x3b, 0x43, 0x40, // cmp rax, [rbx+64]
		0x7f, 0x06, //             jg fail
		0x48, 0x83, 0xc3, callSize, // add rbx, the size of a call
		0xeb, 0xd1, //             jmp next
		0x31, 0xff, //             fail: xor edi, edi
		0x40, 0xb7, 0x01, //       mov dil, 1
		0xb8, 0xe7, 0x00, 0x00, 0x00, // mov eax, exit_group
		0x0f, 0x05) //             syscall
}
