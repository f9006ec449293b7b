// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// An insn is an instruction of BPF: struct bpf_insn of linux/bpf.h.
type insn struct {
	op   uint8
	regs uint8 // destination, and source << 4
	off  int16
	imm  int32
}

// The registers by what the kernel makes of them: r0 is what a call returns, r1 to
// r5 are its arguments and lost with it, r6 to r9 stay, fp is the end of the stack.
const (
	r0 = iota
	r1
	r2
	r3
	r4
	r5
	r6
	r7
	r8
	r9
	fp
)

// Sizes of what is loaded and stored.
const (
	size1 = unix.BPF_B
	size2 = unix.BPF_H
	size4 = unix.BPF_W
	size8 = unix.BPF_DW
)

// Comparisons of a jump: unsigned.
const (
	equals  = unix.BPF_JEQ
	unequal = unix.BPF_JNE
	above   = unix.BPF_JGT
	below   = unix.BPF_JLT
	has     = unix.BPF_JSET // one of the bits
)

// An asm is a program being written: instructions, and jumps to labels.
type asm struct {
	code   []insn
	labels map[string]int
	jumps  map[int]string // to labels, and calls of the program's own functions
}

func newAsm() *asm { return &asm{labels: map[string]int{}, jumps: map[int]string{}} }

func (a *asm) emit(op uint8, dst, src uint8, off int16, imm int32) {
	a.code = append(a.code, insn{op, dst | src<<4, off, imm})
}

// load loads dst from where src points to, store stores src where dst points to.
func (a *asm) load(size, dst, src uint8, off int16) {
	a.emit(unix.BPF_LDX|unix.BPF_MEM|size, dst, src, off, 0)
}
func (a *asm) store(size, dst uint8, off int16, src uint8) {
	a.emit(unix.BPF_STX|unix.BPF_MEM|size, dst, src, off, 0)
}

// Arithmetic on dst: set, add, and, or, xor and shift take a number, move, plus and minus
// another register.
func (a *asm) set(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_K, dst, 0, 0, v)
}
func (a *asm) move(dst, src uint8) { a.emit(unix.BPF_ALU64|unix.BPF_MOV|unix.BPF_X, dst, src, 0, 0) }
func (a *asm) plus(dst, src uint8) { a.emit(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_X, dst, src, 0, 0) }
func (a *asm) add(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_ADD|unix.BPF_K, dst, 0, 0, v)
}
func (a *asm) and(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_AND|unix.BPF_K, dst, 0, 0, v)
}
func (a *asm) or(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_OR|unix.BPF_K, dst, 0, 0, v)
}
func (a *asm) xor(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_XOR|unix.BPF_K, dst, 0, 0, v)
}
func (a *asm) minus(dst, src uint8) { a.emit(unix.BPF_ALU64|unix.BPF_SUB|unix.BPF_X, dst, src, 0, 0) }
func (a *asm) shift(dst uint8, v int32) {
	a.emit(unix.BPF_ALU64|unix.BPF_LSH|unix.BPF_K, dst, 0, 0, v)
}

// loadMap loads a map by its file.
func (a *asm) loadMap(dst uint8, fd int) {
	a.emit(unix.BPF_LD|unix.BPF_IMM|unix.BPF_DW, dst, unix.BPF_PSEUDO_MAP_FD, 0, int32(fd))
	a.emit(0, 0, 0, 0, 0)
}

// host16 turns a number of two bytes from the network's order into the host's.
func (a *asm) host16(dst uint8) { a.emit(unix.BPF_ALU|unix.BPF_END|unix.BPF_TO_BE, dst, 0, 0, 16) }

// label is where jumps go to. It panics at one that the program has already: the pieces of
// a program know each other's labels.
func (a *asm) label(name string) {
	if _, twice := a.labels[name]; twice {
		panic(fmt.Sprintf("two labels %q", name))
	}
	a.labels[name] = len(a.code)
}

func (a *asm) jump(to string) { a.branch(unix.BPF_JMP|unix.BPF_JA, 0, 0, 0, to) }

// when jumps if the register compares so with a number, whenReg if with another register.
func (a *asm) when(dst, comparison uint8, v int32, to string) {
	a.branch(unix.BPF_JMP|comparison|unix.BPF_K, dst, 0, v, to)
}
func (a *asm) whenReg(dst, comparison, src uint8, to string) {
	a.branch(unix.BPF_JMP|comparison|unix.BPF_X, dst, src, 0, to)
}

func (a *asm) branch(op, dst, src uint8, v int32, to string) {
	a.jumps[len(a.code)] = to
	a.emit(op, dst, src, 0, v)
}

// call calls a function of the kernel's, see bpf-helpers(7).
func (a *asm) call(helper int32) { a.emit(unix.BPF_JMP|unix.BPF_CALL, 0, 0, 0, helper) }

// invoke calls a function of the program's own, which begins at a label. r1 to r5 are its
// arguments, r0 is what it returns, and r6 to r9 are its own while it runs.
func (a *asm) invoke(function string) {
	a.branch(unix.BPF_JMP|unix.BPF_CALL, 0, unix.BPF_PSEUDO_CALL, 0, function)
}

// leave ends the program, or the function, with what it says of the packet.
func (a *asm) leave(verdict int32) {
	a.set(r0, verdict)
	a.exit()
}

func (a *asm) exit() { a.emit(unix.BPF_JMP|unix.BPF_EXIT, 0, 0, 0, 0) }

// assemble resolves the labels. It panics at one that is missing.
func (a *asm) assemble() []byte {
	for i, to := range a.jumps {
		target, ok := a.labels[to]
		if !ok {
			panic("no label " + to)
		}
		if distance := target - i - 1; a.code[i].op == unix.BPF_JMP|unix.BPF_CALL {
			a.code[i].imm = int32(distance)
		} else {
			a.code[i].off = int16(distance)
		}
	}
	var b []byte
	for _, in := range a.code {
		b = append(b, in.op, in.regs)
		b = binary.NativeEndian.AppendUint16(b, uint16(in.off))
		b = binary.NativeEndian.AppendUint32(b, uint32(in.imm))
	}
	return b
}
