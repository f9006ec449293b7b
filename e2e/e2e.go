// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package e2e has only tests. They test the whole suite on simulated instances: its programs and conflists, packets on
// each path, and what the docs say.
package e2e
