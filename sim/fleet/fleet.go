// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package fleet has only tests. The tests show how thousands of nodes share the request limits of one account. The
// command "make fleet" runs all tests, and writes docs/fleet.md.
//
// The nodes run the real code of package ipam, and take tokens from a simulation of EC2's token buckets. Other tests
// run models of two other plugins with the same buckets, for comparison. All nodes run in one bubble of
// testing/synctest. So a test simulates hours in minutes, and two tests with the same seed have the same result.
package fleet
