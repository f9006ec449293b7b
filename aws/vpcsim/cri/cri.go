// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package cri is the plugins under container runtimes, and nothing but tests: containerd, or CRI-O, with runc on an instance
// of the simulated VPC, asked as kubelet asks.
//
// Folder programs is a module of its own, which pins containerd, and a client for the Container Runtime Interface with it;
// crio in there is another, since CRI-O wants other versions of what both depend on. None of this is the plugins' business.
package cri
