#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors
#
# sigs.k8s.io/karpenter v1.14.0, which starts nodes for pending pods, and k8s.io/component-helpers v0.35.0, by which the scheduler places pods.
#
# A good guess: Karpenter's Compatible and the scheduler's Match agree for a pod's node affinity and a node's labels. More requirements
# for a label match fewer nodes. NodeSelectorRequirements, which writes the requirements of a NodeClaim, returns all that was read.
#
# What happens: with "Exists" or "Gt 3" alone, a node without the label does not match. With "NotIn 7" added, Karpenter finds that a node
# without the label matches. The scheduler places the pod on no such node. Karpenter calls Compatible in this way for the nodes that exist
# already: so it takes such a node as the place of a pending pod. Written requirements lose "NotIn" if the label has "Gt" or "Lt", too: a
# reader of the NodeClaim takes 7 as allowed. No call fails. The script needs Go.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
printf 'module example.com/karpenter\n\ngo 1.26\n\nrequire (\n\tk8s.io/component-helpers v0.35.0\n\tsigs.k8s.io/karpenter v1.14.0\n)\n' >go.mod
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"sigs.k8s.io/karpenter/pkg/scheduling"
)

const label = "example.com/generation"

func pod(requirements string) *core.Pod {
	term := core.NodeSelectorTerm{}
	for r := range strings.SplitSeq(requirements, ", ") {
		f := strings.Fields(r)
		term.MatchExpressions = append(term.MatchExpressions, core.NodeSelectorRequirement{Key: label, Operator: core.NodeSelectorOperator(f[0]), Values: f[1:]})
	}
	selector := &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{term}}
	return &core.Pod{Spec: core.PodSpec{Affinity: &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}}}
}

func main() {
	for _, requirements := range []string{"Exists", "Exists, NotIn 7", "Gt 3", "Gt 3, NotIn 7"} {
		p := pod(requirements)
		read := scheduling.NewStrictPodRequirements(p)
		fmt.Printf("%s, written: %v\n", requirements, read.NodeSelectorRequirements())
		for _, labels := range []map[string]string{{}, {label: "5"}, {label: "7"}} {
			node := &core.Node{}
			node.Labels = labels
			places, err := nodeaffinity.GetRequiredNodeAffinity(p).Match(node)
			starts := scheduling.NewLabelRequirements(labels).IsCompatible(read)
			fmt.Printf("  node with %v: scheduler: %v, Karpenter: %v, error: %v\n", labels, places, starts, err)
		}
	}
}
EOF
go mod tidy >/dev/null 2>&1 && go list -m sigs.k8s.io/karpenter k8s.io/component-helpers
go run . | tee seen
diff - seen <<'EOF'
Exists, written: [{example.com/generation Exists [] <nil>}]
  node with map[]: scheduler: false, Karpenter: false, error: <nil>
  node with map[example.com/generation:5]: scheduler: true, Karpenter: true, error: <nil>
  node with map[example.com/generation:7]: scheduler: true, Karpenter: true, error: <nil>
Exists, NotIn 7, written: [{example.com/generation NotIn [7] <nil>}]
  node with map[]: scheduler: false, Karpenter: true, error: <nil>
  node with map[example.com/generation:5]: scheduler: true, Karpenter: true, error: <nil>
  node with map[example.com/generation:7]: scheduler: false, Karpenter: false, error: <nil>
Gt 3, written: [{example.com/generation Gte [4] <nil>}]
  node with map[]: scheduler: false, Karpenter: false, error: <nil>
  node with map[example.com/generation:5]: scheduler: true, Karpenter: true, error: <nil>
  node with map[example.com/generation:7]: scheduler: true, Karpenter: true, error: <nil>
Gt 3, NotIn 7, written: [{example.com/generation Gte [4] <nil>}]
  node with map[]: scheduler: false, Karpenter: true, error: <nil>
  node with map[example.com/generation:5]: scheduler: true, Karpenter: true, error: <nil>
  node with map[example.com/generation:7]: scheduler: false, Karpenter: false, error: <nil>
EOF
