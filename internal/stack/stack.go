// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package stack lets the stacks of a short process's goroutines grow in one step. Otherwise a stack grows from 2 kB in
// many steps, and each step copies and rewrites the whole stack. For the first stack of each size, Go's runtime also
// writes to eight new pages of memory. These writes take a twentieth of the instructions of a process that lives for
// milliseconds.
//
// The stack of the program's first goroutine grows when Go initializes this package. Among the packages that import no
// other package, Go begins with the package whose path is the first in the alphabet. So Go initializes this package
// before most others.
package stack

func init() { Deepen(0) }

// Deepen grows the stack of a goroutine at once to the size that a command needs. The stack grows at the call, because
// Deepen declares a large array. The caller passes 0 as i. Go writes zeros to an array at its declaration, and the
// kernel must then provide each page of the array. So the declaration comes after the return.
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
