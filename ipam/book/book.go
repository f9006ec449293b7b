// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package book edits the state of the registry, and answers questions about this state. Its functions ask neither EC2
// nor the kernel nor metadata, but get their answers as arguments. Other packages ask, decide what to write, and call
// these functions to write it.
package book
