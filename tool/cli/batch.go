// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import "math"

// BatchFlag returns the flag for the number of addresses that a command requests.
func BatchFlag() Flag {
	return &IntFlag{Name: "ip_batch_size", Value: 1,
		Usage: "ask for `N` addresses; 0: as many as the ENI can have"}
}

// Batch returns the value of BatchFlag. For 0, it returns a number that is larger than the limit of any ENI.
func Batch(c *Context) (int, error) {
	switch n := c.Int("ip_batch_size"); {
	case n < 0:
		return 0, Misuse(c, "--ip_batch_size %d: want 0 or more", n)
	case n == 0:
		return math.MaxInt32, nil
	default:
		return n, nil
	}
}
