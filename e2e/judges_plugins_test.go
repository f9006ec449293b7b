// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import "testing"

const inProcess = "they call functions of the other plugin in their own process"

// TestJudgePortmap: upstream's tests of portmap, with our plugin as their ptp.
func TestJudgePortmap(t *testing.T) {
	s := suite{program: "portmap.test", focus: "portmap integration tests", not: map[string]string{"": inProcess}}
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) { s.hear(t, newJudged(t, path)) })
	}
}

// TestJudgeIntegration: upstream's integration tests, which call plugins by cnitool, with our plugin as their ptp.
func TestJudgeIntegration(t *testing.T) {
	for path, why := range map[string]string{
		"ipvlan": "upstream's `bandwidth` needs a pod whose first link is a veth",
		"veth":   "upstream's `bandwidth` needs `ifb`, which the kernel of the tests does not have",
	} {
		s := suite{program: "integration.test", focus: "basic network", not: map[string]string{"bandwidth": why}}
		t.Run(path, func(t *testing.T) { s.hear(t, newJudged(t, path)) })
	}
}
