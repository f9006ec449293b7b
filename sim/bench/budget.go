// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A budget is the maximum cost of a request and its response on a route of a layout. The maximum is a multiple of their
// cost in another layout.
type budget struct {
	layout, route, than string
	times               float64
}

// budgets leave some room, because the counts of instructions differ by up to two percent between runs. With a service
// loop, the kernel checks each packet, to recognise replies from Services. This check costs more than two percent.
// Without a service loop there is no such check. The node tracks the connections of routed pods, as a node with
// amazon-vpc-cni-k8s does. A request of a routed pod must not cost more than on such a node. The cost of packets must
// not grow with the number of pods.
var budgets = []budget{
	{ours, otherNode, routedVeth, 1 / 1.3},
	{ours, otherNode, bare, 1.04},
	{ours, sameNode, bare, 1.04},
	{loopless, otherNode, routedVeth, 1 / 1.3},
	{loopless, otherNode, bare, 1.02},
	{loopless, sameNode, bare, 1.02},
	{byVeth, otherNode, tracked, 1},
	{byVeth, sameNode, tracked, 1},
	{crowded, otherNode, byVeth, 1.05},
	{crowded, sameNode, byVeth, 1.05},
}

// kept returns an error for each budget that is exceeded.
func (fs *flows) kept() error {
	var errs []error
	for _, b := range fs.budgets {
		mine := quantile(fs.took(b.layout, b.route, loads[0]), 0)
		its := quantile(fs.took(b.than, b.route, loads[0]), 0)
		if mine == 0 || its == 0 {
			errs = append(errs, fmt.Errorf("%s or %s, %s: nothing was counted", b.layout, b.than, b.route))
			continue
		}
		if got := float64(mine) / float64(its); got > b.times {
			errs = append(errs, fmt.Errorf("%s, %s: a request costs %.3f times as much as one of %s; the budget is "+
				"%.3f times",
				b.layout, b.route, got, b.than, b.times))
		}
	}
	return errors.Join(errs...)
}

// checkRatios returns an error for each of these columns and each of our data paths if their ratio to the row of the
// reference is greater than most, or missing.
func checkRatios(t table.Table, reference string, most float64, columns ...string) error {
	var errs []error
	for _, dataPath := range []string{ours, byVeth} {
		for _, column := range columns {
			if x := t.Ratio(column, dataPath); x == 0 || x > most {
				errs = append(errs, fmt.Errorf("%s of %s is %v times that of %s, want at most %v times", column,
					dataPath, x, reference, most))
			}
		}
	}
	return errors.Join(errs...)
}
