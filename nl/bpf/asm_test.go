// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bpf

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAssemble: jumps and calls of own functions go on from the instruction after them, forth
// and back.
func TestAssemble(t *testing.T) {
	a := newAsm()
	a.label("again")
	a.when(r9, has, 1, "end")
	a.invoke("function")
	a.jump("again")
	a.label("function")
	a.label("end")
	a.exit()
	got := a.assemble()
	if len(got) != 4*InsnSize {
		t.Fatalf("%d bytes for 4 instructions", len(got))
	}
	want := []insn{
		{op: 0x45, regs: r9, off: 2, imm: 1}, // BPF_JMP | BPF_JSET | BPF_K
		{op: 0x85, regs: 1 << 4, imm: 1},     // BPF_JMP | BPF_CALL, BPF_PSEUDO_CALL
		{op: 0x05, off: -3},                  // BPF_JMP | BPF_JA
		{op: 0x95},                           // BPF_JMP | BPF_EXIT
	}
	if d := cmp.Diff(want, a.code, cmp.AllowUnexported(insn{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestLabels: a label that is missing, or is there twice, is a mistake in the program.
func TestLabels(t *testing.T) {
	for name, mistake := range map[string]func(*asm){
		"missing": func(a *asm) { a.jump("nowhere"); a.assemble() },
		"twice":   func(a *asm) { a.label("here"); a.label("here") },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			mistake(newAsm())
		}()
	}
}
