// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
)

// fixedPatches has the first patch release without the fault containerd#12923, by the major and minor release of
// containerd. If containerd with this fault is killed before it has recorded an ADD, the pod may end without a DEL.
// Later minor releases never had the fault.
var fixedPatches = map[[2]int]int{{1, 7}: 31, {2, 0}: 10, {2, 1}: 7, {2, 2}: 2}

// checkRuntime looks for a runtime that may end a pod without a DEL. It executes the containerd in PATH, and not the
// program of a running process. Any user can start a process with the name containerd.
func (p *Node) checkRuntime(ctx context.Context) ([]Finding, error) {
	all, err := runtimeProcesses()
	if err != nil || !slices.ContainsFunc(all, func(r process) bool { return r.program == "containerd" }) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	answer, err := exec.CommandContext(ctx, "containerd", "--version").Output()
	if err != nil {
		return nil, nil // containerd is not in PATH, for example on k3s
	}
	release := faultyRelease(string(answer))
	if release == "" {
		return nil, nil
	}
	return []Finding{{Severity: note, About: "containerd " + release,
		Means: "if containerd of this release is killed before it has recorded the ADD of a pod, it calls no DEL for " +
			"the pod. The pod's address then stays leased until cni-gc.timer ends the lease",
		Do: "keep cni-gc.timer, or install containerd 1.7.31, 2.0.10, 2.1.7, 2.2.2, 2.3.0 or a later release"}}, nil
}

// faultyRelease returns the release in containerd's answer to --version, if this release may end a pod without a DEL.
// Otherwise, it returns "".
func faultyRelease(answer string) string {
	m := regexp.MustCompile(`\bv?(\d+)\.(\d+)\.(\d+)`).FindStringSubmatch(answer)
	if m == nil {
		return "" // a build of a commit has no release number
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // m[i+1] has only digits; if they are too many, Atoi returns the largest int
	}
	first, ok := fixedPatches[[2]int{n[0], n[1]}]
	if ok && n[2] >= first || !ok && (n[0] > 2 || n[0] == 2 && n[1] > 2) {
		return ""
	}
	return m[0]
}
