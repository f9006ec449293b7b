// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import "testing"

// TestChart runs the tests of the chart, the manifests, and the files for platforms. They are in a module of their own,
// because Helm's engine requires 80 others.
func TestChart(t *testing.T) { command(t, "go", "test", "-C", "render", "./...") }
