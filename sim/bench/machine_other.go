// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

//go:build !amd64

package main

import "golang.org/x/sys/unix"

const (
	fstatat    = unix.SYS_FSTATAT
	epollEvent = 16 // the size of struct epoll_event
)

// program returns nothing: for this machine there is no code.
func program(int) []byte { return nil }
