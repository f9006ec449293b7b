// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package e2e tests the whole suite on simulated instances: its programs, conflists, packets on each path, and the
// statements of the docs.
package e2e
