// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package main

import (
	"slices"
	"strconv"
	"time"
)

func byPlugin(samples []sample) map[string][]sample {
	m := map[string][]sample{}
	for _, s := range samples {
		for _, step := range s.steps {
			m[step.plugin] = append(m[step.plugin], sample{cost: step.cost})
		}
	}
	return m
}

// cpu returns the average CPU time of an ADD and its DEL.
func (s *subject) cpu() time.Duration { return mean(s.add) + mean(s.del) }

func mean(samples []sample) time.Duration {
	var sum time.Duration
	for _, s := range samples {
		sum += s.cpu
	}
	return sum / time.Duration(max(1, len(samples)))
}

// median returns the median elapsed time and the median CPU time of samples.
func median(samples []sample) cost {
	var cpus []time.Duration
	for _, s := range samples {
		cpus = append(cpus, s.cpu)
	}
	slices.Sort(cpus)
	return cost{quantile(walls(samples), 0.5), quantile(cpus, 0.5)}
}

func walls(samples []sample) []time.Duration {
	var w []time.Duration
	for _, s := range samples {
		w = append(w, s.wall)
	}
	slices.Sort(w)
	return w
}

// quantile returns a quantile of a sorted list. For example, q = 0.5 means the median.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func ratio(a, b time.Duration) string {
	if b == 0 {
		return "" // there is no reference
	}
	return strconv.FormatFloat(float64(a)/float64(b), 'f', 2, 64)
}
