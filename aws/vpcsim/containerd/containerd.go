// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package containerd is the plugins under a container runtime, and nothing but tests: containerd and runc on an instance of
// the simulated VPC, asked as kubelet asks.
//
// Folder programs is a module of its own, which pins them, and a client for the Container Runtime Interface with them: what
// they depend on is none of the plugins' business.
package containerd
