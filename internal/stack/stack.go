// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package stack saves a short process the growth of its goroutines' stacks. A stack grows from 2 kB in steps, each of
// which copies and rewrites the whole stack. For the first one of each size the runtime also writes to eight new pages
// of memory. These writes take a twentieth of the instructions of a process that lives for milliseconds.
//
// The program's first goroutine has its stack when this package is initialized. Go initializes the packages in the
// order of their paths if they need no others, so that is before most of them.
package stack

func init() { Deepen(0) }

// Deepen grows the stack of a goroutine at once to the size that a command needs. i is 0. The array is declared behind
// the return: Go zeroes it there, and the kernel would have to provide each of its pages.
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
