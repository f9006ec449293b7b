// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

#include "textflag.h"

// setns.go says why this is assembly.

// func callIn(ns, home, trap, a1, a2, a3, a4 uintptr) (entered, result, left uintptr)
TEXT ·callIn(SB), NOSPLIT, $0-80
	MOVQ	ns+0(FP), DI
	MOVQ	$0x40000000, SI	// CLONE_NEWNET
	MOVQ	$308, AX	// setns
	SYSCALL
	MOVQ	AX, entered+56(FP)
	TESTQ	AX, AX
	JNE	outside
	MOVQ	a1+24(FP), DI
	MOVQ	a2+32(FP), SI
	MOVQ	a3+40(FP), DX
	MOVQ	a4+48(FP), R10
	MOVQ	trap+16(FP), AX
	SYSCALL
	MOVQ	AX, result+64(FP)
	MOVQ	home+8(FP), DI
	MOVQ	$0x40000000, SI
	MOVQ	$308, AX
	SYSCALL
	MOVQ	AX, left+72(FP)
	RET
outside:
	MOVQ	$0, result+64(FP)
	MOVQ	$0, left+72(FP)
	RET
