// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Command cni-ipvlan-vpc-k8s-tool shows and changes the ENIs and addresses of a node.
package main

import "github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool"

func main() { tool.Main() }
