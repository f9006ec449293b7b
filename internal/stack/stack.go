// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package stack makes the stack of a goroutine grow in one step, instead of many steps from 2 kB. For each new size,
// Go's runtime prepares several stacks, and writes to up to eight new pages of memory. In a process that runs for only
// some milliseconds, these writes need a twentieth of all CPU instructions.
//
// The initialization of this package makes the stack of the main goroutine grow. The package imports no other package,
// so Go initializes it before most others.
package stack

func init() { Deepen(0) }

// Deepen grows the stack of the calling goroutine at once to the size that a command needs. At the beginning of the
// call, Go makes the stack large enough for the array below, even if the call returns before the array's declaration.
// The argument must be 0, because otherwise Go would write zeros to the whole array.
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
