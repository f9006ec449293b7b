// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"errors"
	"fmt"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/internal/table"
)

// A budget limits the cost of a request and its response, in one layout and on one route. The limit is a multiple of
// the cost on the same route in another layout. The field "times" is the factor.
type budget struct {
	layout, route, otherLayout string
	times                      float64
}

// The limits are a little higher than the measured costs, because counts of instructions differ by up to two percent
// between runs. With a service loop, the limits are higher, because the kernel checks for each packet whether it is a
// reply from a Service.
//
// Our node tracks the connections of routed pods, and a node with amazon-vpc-cni-k8s tracks the connections of all
// pods. So a request of our routed pod must not cost more than a request of a pod with amazon-vpc-cni-k8s. The cost of
// packets must not grow with the number of pods.
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

func (fs *flows) checkBudgets() error {
	var errs []error
	for _, b := range fs.budgets {
		mine := quantile(fs.sortedCosts(b.layout, b.route, loads[0]), 0)
		its := quantile(fs.sortedCosts(b.otherLayout, b.route, loads[0]), 0)
		if mine == 0 || its == 0 {
			errs = append(errs, fmt.Errorf("route %q: no instructions were counted for the layout %q or the layout %q",
				b.route, b.layout, b.otherLayout))
			continue
		}
		if got := float64(mine) / float64(its); got > b.times {
			errs = append(errs, fmt.Errorf("layout %q, route %q: a request costs %.3f times as much as in the layout "+
				"%q; the budget is %.3f times",
				b.layout, b.route, got, b.otherLayout, b.times))
		}
	}
	return errors.Join(errs...)
}

// checkRatios checks these columns of the table for our two data paths. It returns an error for each ratio that is
// missing or greater than maxRatio.
func checkRatios(t table.Table, reference string, maxRatio float64, columns ...string) error {
	var errs []error
	for _, dataPath := range []string{ours, byVeth} {
		for _, column := range columns {
			if x := t.Ratio(column, dataPath); x == 0 || x > maxRatio {
				errs = append(errs, fmt.Errorf("%s of %s is %v times that of %s, want at most %v times", column,
					dataPath, x, reference, maxRatio))
			}
		}
	}
	return errors.Join(errs...)
}
