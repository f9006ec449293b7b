// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package fleet has only tests. They show how thousands of nodes share the request limits of one account. The command
// "make fleet" runs all tests, and writes docs/fleet.md.
//
// The nodes run the real code of package ipam against EC2's token buckets. There are also models of two other plugins.
// The models take tokens from buckets with the same limits. All nodes run in one bubble of testing/synctest, so hours
// pass in minutes. With the same seed, everything happens at the same nanosecond in each run.
package fleet
