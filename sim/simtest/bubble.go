// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package simtest

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// In a bubble of testing/synctest, the wall clock stands still or leaps, but the machine's uptime goes on. Package
// registry could conclude that a program has set the clock. So in a bubble, registry.Uptime is the time since the
// bubble's start.
func init() {
	bubble, machine := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), registry.Uptime
	registry.Uptime = func() time.Duration {
		if since := time.Since(bubble); since < 10*365*24*time.Hour {
			return since
		}
		return machine()
	}
}
