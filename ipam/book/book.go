// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package book edits the state of the registry, and answers questions about this state. Its functions ask neither EC2
// nor metadata nor the kernel. Other packages ask EC2, metadata and the kernel, and pass the answers to package book as
// arguments.
package book
