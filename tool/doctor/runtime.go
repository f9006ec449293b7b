// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package doctor

import (
	"context"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// remembers is the first release of each series of containerd that deletes a pod although it has not recorded the end
// of its ADD (containerd#12923). Later series do so, too.
var remembers = map[[2]int]int{{1, 7}: 31, {2, 0}: 10, {2, 1}: 7, {2, 2}: 2}

// checkRuntime looks for a runtime that may end a pod without a DEL. checkRuntime executes the containerd of PATH. The
// program of a process is not safe to execute: any user can start one with this name.
func (p *Node) checkRuntime(ctx context.Context) ([]Finding, error) {
	all, err := executing()
	if err != nil || !slices.ContainsFunc(all, func(r process) bool { return r.program == "containerd" }) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	answer, err := exec.CommandContext(ctx, "containerd", "--version").Output()
	if err != nil {
		return nil, nil // it is elsewhere, as that of k3s
	}
	release := forgetful(string(answer))
	if release == "" {
		return nil, nil
	}
	return []Finding{{Severity: note, About: "containerd " + release,
		Means: "this release calls no DEL for a pod if it was killed before it recorded the pod's ADD. The pod's " +
			"address stays leased until cni-gc.timer frees it",
		Do: "keep cni-gc.timer, or install containerd 1.7.31, 2.0.10, 2.1.7, 2.2.2, 2.3.0 or a later release"}}, nil
}

// forgetful returns the release in containerd's answer to --version, if pods of that release may end without a DEL.
func forgetful(answer string) string {
	m := regexp.MustCompile(`\bv?(\d+)\.(\d+)\.(\d+)`).FindStringSubmatch(answer)
	if m == nil {
		return "" // built from a commit
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(m[i+1]) // digits; one that is too large is the largest
	}
	first, ok := remembers[[2]int{n[0], n[1]}]
	if ok && n[2] >= first || !ok && (n[0] > 2 || n[0] == 2 && n[1] > 2) {
		return ""
	}
	return m[0]
}
