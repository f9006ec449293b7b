// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri has only tests. They test the plugins with real container runtimes: containerd or CRI-O, each with runc.
// The runtime runs on an instance of the simulated VPC, and the tests call it as kubelet does.
//
// The directory programs/ is a separate module, on which no plugin depends. It pins containerd and a client for the
// Container Runtime Interface (CRI). Separate modules below it pin other programs: crio pins CRI-O, critest pins the
// tests of the CRI, and multus pins Multus. Each module in releases/ pins another version of containerd. programs/bats/
// pins the npm package bats, which runs CRI-O's own tests.
package cri
