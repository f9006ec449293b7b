// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri has only tests. They test the plugins with real container runtimes: containerd or CRI-O, each with runc.
// The runtime runs on an instance of the simulated VPC, and the tests call it as kubelet does.
//
// The subdirectory programs/ is a separate module, which pins containerd and a client for the Container Runtime
// Interface (CRI). Some directories below programs/ are separate modules, too. The module crio pins CRI-O, which needs
// other versions of some dependencies. The module critest pins the tests of the CRI, and the module multus pins Multus.
// Each module below programs/releases/ pins another version of containerd. The directory programs/bats/ is not a Go
// module: it pins the npm package bats, which runs CRI-O's own tests. The plugins depend on none of these modules.
package cri
