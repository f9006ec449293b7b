// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package registry

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// The last member of the file is a sum of all bytes before it. If it is right, we have
// checked and written the file, and a process that needs one lease does not parse the
// others. If it is wrong, somebody else has written the file: the original, a person, or an
// early release of ours, which keeps the sum as an unknown field.
//
// The sum detects edits and broken memory. It does not protect against an attacker, who
// could write the sum, too.

// layout is the initial value of all sums. A release whose leases earlier releases cannot
// read, or whose leases do not begin with their key, needs another value. To earlier releases its sums are then wrong, so they parse the
// whole file.
const layout = 0x2545f4914f6cdd1d

// seal returns the end of a file that begins with b. Of the file, b lacks only the closing
// brace.
func seal(b []byte) []byte {
	return fmt.Appendf(nil, `,"sum":"%016x"}`+"\n", sum(b))
}

// sealed reports whether the file ends with the sum of its content.
func sealed(b []byte) bool {
	n := len(b) - len(seal(nil))
	return n > 0 && bytes.Equal(b[n:], seal(b[:n]))
}

// sum is a hash of 64 bits. Each step is one-to-one in each of its words and in the
// previous hash, so a change within one word always changes the sum. Two independent chains
// let the processor work on both at once.
func sum(b []byte) uint64 {
	one, two, rest := uint64(layout), uint64(len(b)), b
	for ; len(rest) >= 64; rest = rest[64:] { // 64 bytes each time: half as many checks of the length
		w := (*[64]byte)(rest)
		one, two = step(one, word(w[0:8]), word(w[8:16])), step(two, word(w[16:24]), word(w[24:32]))
		one, two = step(one, word(w[32:40]), word(w[40:48])), step(two, word(w[48:56]), word(w[56:64]))
	}
	for ; len(rest) >= 32; rest = rest[32:] {
		w := (*[32]byte)(rest)
		one, two = step(one, word(w[0:8]), word(w[8:16])), step(two, word(w[16:24]), word(w[24:32]))
	}
	var w [32]byte
	copy(w[:], rest)
	one, two = step(one, word(w[0:8]), word(w[8:16])), step(two, word(w[16:24]), word(w[24:32]))
	all := bits.RotateLeft64(one*factor, 31) ^ two*factor
	return all ^ all>>32
}

// factor is 2^64 divided by the golden ratio. Its bits look random. It is odd, so the
// multiplication is one-to-one.
const factor = 0x9e3779b97f4a7c15

// step adds two words to a hash.
func step(h, first, second uint64) uint64 {
	return bits.RotateLeft64((h^first)*factor+second, 29)
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
