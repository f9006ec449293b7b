// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package manifest has the test of the manifests that cni-tool prints, by the code of the API server itself.
package manifest
