// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/sim/vpcsim"
)

func (s *scene) nodeStates() ([][]string, error) {
	var all [][]string
	for _, n := range s.Nodes {
		lines, err := vpcsim.State(n.NS)
		if err != nil {
			return nil, err
		}
		all = append(all, lines)
	}
	return all, nil
}

// stateDifference returns an error with the lines that only one of the two states has.
func stateDifference(before, now []string) error {
	var lines []string
	for _, l := range now {
		if !slices.Contains(before, l) {
			lines = append(lines, "left: "+l)
		}
	}
	for _, l := range before {
		if !slices.Contains(now, l) {
			lines = append(lines, "gone: "+l)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New("the state differs\n" + strings.Join(lines, "\n"))
}
