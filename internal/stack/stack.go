// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package stack lets the stack of a goroutine grow in one step. Otherwise a stack grows from 2 kB in many steps, and
// each step copies the whole stack and adjusts its pointers. For the first stack of each size, Go's runtime also writes
// to eight new pages of memory. These writes take a twentieth of the instructions of a process that runs for only some
// milliseconds.
//
// The stack of the main goroutine grows when Go initializes this package. Go initializes packages that import no other
// package first, sorted by path. So Go initializes this package before most others.
package stack

func init() { Deepen(0) }

// Deepen grows the stack of the calling goroutine at once to the size that a command needs. Because Deepen declares a
// large array, the stack grows when Deepen is called, even if it returns before the declaration. The caller passes 0 as
// i, so Deepen does return before. Otherwise Go would write zeros to the array, and the kernel would have to provide
// each page of it.
//
//go:noinline
func Deepen(i int) byte {
	if i == 0 {
		return 0
	}
	var stack [40 << 10]byte
	stack[i] = 1
	return stack[i/2]
}
