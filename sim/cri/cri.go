// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri tests the plugins with real container runtimes, and has no other code. containerd or CRI-O runs with runc
// on an instance of the simulated VPC, and gets the calls of kubelet.
//
// Directory programs is a separate module, which pins containerd and a client for the Container Runtime Interface. Its
// directory crio is another module, because CRI-O needs other versions of some dependencies. So are the tests of that
// interface in critest, and other releases of containerd in releases. The plugins depend on none of them.
package cri
