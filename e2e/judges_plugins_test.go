// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

const inProcess = "they call functions of the other plugin in their own process"

// TestJudgePortmap: upstream's tests of portmap, with our plugin as their ptp.
func TestJudgePortmap(t *testing.T) {
	s := judge.Suite{Focus: "portmap integration tests", Not: map[string]string{"": inProcess}}
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) { newJudged(t, path).hear(t, "portmap.test", s) })
	}
}

// TestJudgeIntegration: upstream's integration tests, which call plugins by cnitool, with our plugin as their ptp.
func TestJudgeIntegration(t *testing.T) {
	for path, why := range map[string]string{
		"ipvlan": "upstream's `bandwidth` needs a pod whose first link is a veth",
		"veth":   "upstream's `bandwidth` needs `ifb`, which the kernel of the tests does not have",
	} {
		s := judge.Suite{Focus: "basic network", Not: map[string]string{"bandwidth": why}}
		t.Run(path, func(t *testing.T) { newJudged(t, path).hear(t, "integration.test", s) })
	}
}
