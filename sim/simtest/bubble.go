// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package simtest

import (
	"time"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
)

// In a synctest bubble the wall clock stands still or leaps, while the machine's uptime goes on. A slow machine would
// look like a clock that a program has set. So there the machine runs since the beginning of the bubble's time.
func init() {
	bubble, machine := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), registry.Uptime
	registry.Uptime = func() time.Duration {
		if since := time.Since(bubble); since < 10*365*24*time.Hour {
			return since
		}
		return machine()
	}
}
