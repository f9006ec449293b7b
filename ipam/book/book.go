// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package book edits the state of the registry, and answers questions about it. It asks neither EC2 nor the kernel nor
// metadata: their answers are arguments of its functions. Other packages ask them, decide what to write, and call these
// functions to write it.
package book
