// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// The last member of the file is a sum of all bytes before it. Where it is right, the file
// is what we have checked and written, and who wants one lease need not read them all.
// Where it is not, somebody else has written the file: the original, a release of ours
// before there was a sum, which keeps what it does not know, or a person.
//
// It is against edits and broken memory, not against malice: who can write the file could
// write the sum.

// layout is what all sums begin with. A release whose leases cannot be read by the ones
// before it needs another one: to them its sums are wrong then, and they look closely.
const layout = 0x2545f4914f6cdd1d

// seal is the end of a file that begins with b, which lacks only a brace.
func seal(b []byte) []byte {
	return fmt.Appendf(nil, `,"sum":"%016x"}`+"\n", sum(b))
}

// sealed tells whether a file ends as it has to if we have written it.
func sealed(b []byte) bool {
	n := len(b) - len(seal(nil))
	return n > 0 && bytes.Equal(b[n:], seal(b[:n]))
}

// sum is a hash of 64 bits. Each step is one to one in each of its words and in what was
// before, so a change within one word is always seen. Two go on at a time, which need not
// wait for each other.
func sum(b []byte) uint64 {
	one, two, rest := uint64(layout), uint64(len(b)), b
	for len(rest) >= 32 {
		w := (*[32]byte)(rest)
		one, two = step(one, w[:16]), step(two, w[16:])
		rest = rest[32:]
	}
	var w [32]byte
	copy(w[:], rest)
	one, two = step(one, w[:16]), step(two, w[16:])
	all := bits.RotateLeft64(one*factor, 31) ^ two*factor
	return all ^ all>>32
}

// factor is 2^64 by the golden ratio: its bits are as if by chance, and it is odd, so
// that a product says what was multiplied.
const factor = 0x9e3779b97f4a7c15

// step takes 16 bytes into a hash.
func step(h uint64, b []byte) uint64 {
	return bits.RotateLeft64((h^binary.LittleEndian.Uint64(b))*factor+binary.LittleEndian.Uint64(b[8:]), 29)
}
