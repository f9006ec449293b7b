// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package image is how a recording of system calls is laid out in memory, and in a file.
//
// The file is mapped at a fixed address. So the pointers among the arguments are ready, and whoever makes the calls again
// need not change them. Behind the file is room for what the kernel answers.
package image

// Base is the address of the file in memory. Programs without position-independent code end below it, and neither the
// heap of Go nor libraries are near it.
const Base = 1 << 32

// Calls is where the file has its calls. Before them it may have a program.
const Calls = 256

// Room is how many bytes follow the last page of the file, for answers.
const Room = 1 << 20

// A Call is a system call, and the results that it may have. The last one of a file ends the process.
type Call struct {
	Number uintptr
	Args   [6]uintptr
	Least  int // an error is its negative number
	Most   int
}

// Behind returns the address of the room behind a file of this size.
func Behind(size int) uintptr {
	const page = 1 << 12
	return Base + (uintptr(size)+page-1)&^(page-1)
}
