// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri tests the plugins with real container runtimes, and has no other code. containerd or CRI-O runs with runc
// on an instance of the simulated VPC, and the tests call the runtime as kubelet does.
//
// The directory programs is a separate module, which pins containerd and a client for the Container Runtime Interface.
// Its directory crio is another module, because CRI-O needs other versions of some dependencies. critest (the tests of
// that interface), multus, and releases (other releases of containerd) are also modules. The directory bats pins bats,
// a package of npm that runs CRI-O's own tests. The plugins depend on none of these.
package cri
