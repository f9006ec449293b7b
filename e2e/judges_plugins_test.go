// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/judge"
)

const inProcess = "they call functions of the other plugin in their own process"

// tries is the number of attempts for a test of upstream. These tests have time limits of one or five seconds, which a
// busy machine may exceed.
const tries = 3

// TestJudgePortmap runs the CNI project's tests of portmap, with our plugin in place of ptp.
func TestJudgePortmap(t *testing.T) {
	s := judge.Suite{Focus: "portmap integration tests", Not: map[string]string{"": inProcess}, Tries: tries}
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) { newJudged(t, path).hear(t, "portmap.test", s) })
	}
}

// TestJudgeIntegration runs the CNI project's integration tests, which call plugins by cnitool, with our plugin in
// place of ptp.
func TestJudgeIntegration(t *testing.T) {
	for path, focus := range map[string]string{"ipvlan": "basic network", "veth": "basic cases"} {
		s := judge.Suite{Focus: focus, Tries: tries, Not: map[string]string{
			"bandwidth":         "upstream's `bandwidth` needs a pod whose first link is a veth",
			"multiple adapters": "upstream's `bandwidth` follows `bridge`, and the test calls none of our plugins"}}
		t.Run(path, func(t *testing.T) { newJudged(t, path).hear(t, "integration.test", s) })
	}
}
