// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package ipvlan

import (
	"testing"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl/nltest"
)

// TestDocs compares the section of docs/node.md about several interfaces with the wiring.
func TestDocs(t *testing.T) {
	want := "\n```\n" + shipped(t, false).String() + "```\n\n"
	nltest.Section(t, "../../docs/node.md", "go test ./plugin/ipvlan -run TestDocs -update", want, *update)
}
