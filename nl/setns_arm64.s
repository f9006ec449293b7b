// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

#include "textflag.h"

// setns.go says why this is assembly.

// func callIn(ns, home, trap, a1, a2, a3, a4 uintptr) (entered, result, left uintptr)
TEXT ·callIn(SB), NOSPLIT, $0-80
	MOVD	ns+0(FP), R0
	MOVD	$0x40000000, R1	// CLONE_NEWNET
	MOVD	$268, R8	// setns
	SVC
	MOVD	R0, entered+56(FP)
	CBNZ	R0, outside
	MOVD	a1+24(FP), R0
	MOVD	a2+32(FP), R1
	MOVD	a3+40(FP), R2
	MOVD	a4+48(FP), R3
	MOVD	trap+16(FP), R8
	SVC
	MOVD	R0, result+64(FP)
	MOVD	home+8(FP), R0
	MOVD	$0x40000000, R1
	MOVD	$268, R8
	SVC
	MOVD	R0, left+72(FP)
	RET
outside:
	MOVD	ZR, result+64(FP)
	MOVD	ZR, left+72(FP)
	RET
