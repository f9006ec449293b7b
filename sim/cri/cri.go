// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri has only tests. They test the plugins with real container runtimes. containerd or CRI-O runs with runc on
// an instance of the simulated VPC, and the tests call the runtime as kubelet does.
//
// The directory programs is a separate module, which pins containerd and a client for the Container Runtime Interface
// (CRI). Some directories below it are also modules: crio, because CRI-O needs other versions of some dependencies;
// critest, the tests of the CRI; multus; and releases, other releases of containerd. The directory bats pins bats, a
// package of npm that runs CRI-O's own tests. The plugins depend on none of these.
package cri
