// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import "math"

// BatchFlag is the flag for how many addresses to ask for at once.
func BatchFlag() Flag {
	return &IntFlag{Name: "ip_batch_size", Value: 1,
		Usage: "ask for `N` addresses; 0: as many as the interface can have"}
}

// Batch is the value of BatchFlag, with as many as there are for 0.
func Batch(c *Context) (int, error) {
	switch n := c.Int("ip_batch_size"); {
	case n < 0:
		return 0, Misuse(c, "--ip_batch_size: %d: want 0 or more", n)
	case n == 0:
		return math.MaxInt32, nil
	default:
		return n, nil
	}
}
