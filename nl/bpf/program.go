// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

//go:generate go run generate.go

// A program is the output of generate.go: instructions (struct bpf_insn of linux/bpf.h), and the operands that the
// compiler does not know.
type program struct {
	code     []uint64
	operands []operand
}

// An operand is a number that a caller of withValues chooses. The instruction BPF_LD | BPF_IMM | BPF_DW loads this
// number. It is twice as long as other instructions.
type operand struct {
	name string
	at   int
	fd   bool // the number is the file descriptor of a map
}

// withValues returns the instructions with the values of the operands. It panics if the names in the map are not
// exactly the names of the operands.
func (p program) withValues(values map[string]uint64) []byte {
	b := make([]byte, 0, InsnSize*len(p.code))
	for _, insn := range p.code {
		b = binary.LittleEndian.AppendUint64(b, insn)
	}
	used := map[string]bool{}
	for _, g := range p.operands {
		v, ok := values[g.name]
		if !ok {
			panic(fmt.Sprintf("the program has no %q", g.name))
		}
		used[g.name] = true
		insn := b[g.at*InsnSize:]
		binary.LittleEndian.PutUint32(insn[4:], uint32(v))
		if g.fd {
			insn[1] |= unix.BPF_PSEUDO_MAP_FD << 4
		} else {
			binary.LittleEndian.PutUint32(insn[InsnSize+4:], uint32(v>>32))
		}
	}
	if len(used) != len(values) {
		panic(fmt.Sprintf("the program takes %v of %v", used, values))
	}
	return b
}
