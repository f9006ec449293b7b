// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

// A state is the result of vpcsim.State for a namespace.
type state []string

// dump reads the states of the nodes.
func (s *scene) dump() ([]state, error) {
	var all []state
	for _, n := range s.Nodes {
		d, err := vpcsim.State(n.NS)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// without returns the lines of s that other does not have.
func (s state) without(other state) state {
	return slices.DeleteFunc(slices.Clone(s), func(line string) bool { return slices.Contains(other, line) })
}

// differ returns an error with the lines that should not be there, and the lines that are missing.
func differ(left, gone state) error {
	var lines []string
	for _, l := range left {
		lines = append(lines, "left: "+l)
	}
	for _, l := range gone {
		lines = append(lines, "gone: "+l)
	}
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf("the state differs\n%s", strings.Join(lines, "\n"))
}
