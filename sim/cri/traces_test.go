// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cri_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// traces returns everything that pods can leave behind on the node, in the registry and in the runtime, one item per
// line. traces omits the namespaces of pods, because CRI-O leaves such namespaces. It has the node's ends of the links
// that lead into such namespaces.
func (s *server) traces(t *testing.T) []string {
	t.Helper()
	all := strings.Split(nltest.Dump(t, s.node.NS), "\n")
	state, err := must(registry.Open(s.node.StateDir)).View()
	if err != nil {
		t.Fatal(err)
	}
	for a, l := range state.Leases.All() {
		all = append(all, fmt.Sprintf("lease %s %+v", a, l))
	}
	for _, pattern := range append([]string{"/run/netns/*", "/var/lib/cni/results/*"}, s.leaves...) {
		if !filepath.IsAbs(pattern) {
			pattern = s.path(pattern)
		}
		all = append(all, must(filepath.Glob(pattern))...)
	}
	for line := range bytes.Lines(must(os.ReadFile("/proc/self/mountinfo"))) {
		if point := string(bytes.Fields(line)[4]); !strings.HasPrefix(point, s.path("namespaces")) {
			all = append(all, "mount "+point)
		}
	}
	for range s.running(filepath.Join(s.programs, "containerd-shim-runc-v2")) {
		all = append(all, "shim")
	}
	for range s.running(filepath.Join(s.plugins, "*")) {
		all = append(all, "plugin")
	}
	return all
}

func (s *server) running(pattern string) (pids []int) {
	for _, link := range must(filepath.Glob("/proc/[0-9]*/exe")) {
		if exe, _ := os.Readlink(link); must(filepath.Match(pattern, exe)) {
			pids = append(pids, must(strconv.Atoi(filepath.Base(filepath.Dir(link)))))
		}
	}
	return pids
}
