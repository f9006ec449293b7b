// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package packaging

import "testing"

// TestChart runs the tests of the chart, the manifests and the files for platforms. These tests are in a separate
// module, because Helm's engine requires 80 other modules.
func TestChart(t *testing.T) { command(t, "go", "test", "-C", "render", "./...") }
