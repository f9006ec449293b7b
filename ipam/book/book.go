// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package book edits the state of the registry, and answers questions about it. Package book asks neither EC2 nor the
// kernel nor metadata: their answers are arguments of its functions. The packages that ask them use this package: each
// decides what to write, and writes it by these functions.
package book
