// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package e2e has only tests. They run the programs of the suite on simulated instances, with the conflists that
// operators use, and send packets on each path. They also check that what the docs say is true.
package e2e
