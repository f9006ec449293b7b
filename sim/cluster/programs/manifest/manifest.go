// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package manifest tests the manifests of cni-tool with the code of the API server.
package manifest
