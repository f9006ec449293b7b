// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package stack makes the stack of a goroutine grow in one step. Without this package, a stack grows from 2 kB in many
// steps. Each step copies the whole stack and adjusts its pointers. When a goroutine first needs a stack of a certain
// size, Go's runtime prepares several stacks of this size. For this, the runtime writes to up to eight new pages of
// memory. In a process that runs for only some milliseconds, these writes need a twentieth of all CPU instructions.
//
// The initialization of this package makes the stack of the main goroutine grow. Go first initializes the packages that
// import no other package, in the order of their paths. Because this package imports no other package, Go initializes
// it before most other packages.
package stack

func init() { Deepen(0) }

// Deepen grows the stack of the calling goroutine at once to the size that a command needs. Deepen declares a large
// array. Go makes the stack large enough for the array at the beginning of the call, even if the call returns before
// the declaration. The argument must be 0, so that Deepen returns before the declaration. For any other number, Go
// would write zeros to the whole array, and the kernel would have to provide each page of the array.
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
