// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package e2e

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

const inProcess = "they call functions of the other plugin in their own process"

// TestJudgePortmap: upstream's tests of portmap, with our plugin as their ptp.
func TestJudgePortmap(t *testing.T) {
	s := suite{program: "portmap.test", focus: "portmap integration tests", not: map[string]string{"": inProcess}}
	for _, path := range []string{"ipvlan", "veth"} {
		t.Run(path, func(t *testing.T) { s.hear(t, newJudged(t, path)) })
	}
}

// TestJudgeIntegration: upstream's integration tests, which call plugins by cnitool, with our plugin as their ptp and
// their bridge.
func TestJudgeIntegration(t *testing.T) {
	s := suite{program: "integration.test"}
	t.Run("veth", func(t *testing.T) {
		nltest.Need(t, "ifb")
		s.hear(t, newJudged(t, "veth"))
	})
	s.focus = "basic network"
	s.not = map[string]string{"bandwidth": "upstream's `bandwidth` needs a pod whose first link is a veth"}
	t.Run("ipvlan", func(t *testing.T) { s.hear(t, newJudged(t, "ipvlan")) })
}
