// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package fleet tests how thousands of nodes share the request limits of one account, and has no other code. make fleet
// runs all tests, and writes docs/fleet.md.
//
// The nodes run the real code of package ipam, in one bubble of testing/synctest, against EC2's token buckets. There
// are also models of two other plugins. Each model takes tokens from buckets with the same limits. Hours pass in
// minutes, and with the same seed everything happens at the same nanosecond.
package fleet
